"""Every family × mesh: logits and gradients are those of `transformers`, float32."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
from meshkit import assemble, mesh
from meshkit.config import load as load_config
from meshkit.equality import one_device
from meshkit.equality.verify import QUICK, canonical_leaves
from meshkit.hf import transfer
from meshkit.hf.load import load
from meshkit.hf.weights import joint
from meshkit.models.names import tensors
from meshkit.train_step import TrainStep
from tests.hf import published

BOUND = 1e-4
SHAPES = [(1, 1, 1), (2, 2, 2)]


@pytest.mark.parametrize("family", published.CONFIGS)
def test_logits_and_gradients_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = published.save(family, tmp_path)
    for shape in SHAPES:
        step, seen = step_that_shows(folder, shape)
        batch = jax.device_put(batch_of(step), step.batch_sharding)
        run = jax.jit(lambda *given, step=step: step.gradients(*given), compiler_options=QUICK)
        gradients = run(load(folder, step), batch, jnp.int32(0))[2]
        jax.effects_barrier()
        got = np.stack([seen[tuple(targets)] for targets in published.batch()[1]])
        want = published.logits(published.model(family))
        assert np.abs(want).max() > 0.5
        np.testing.assert_allclose(got, want, rtol=0, atol=BOUND)
        theirs = as_published(canonical_leaves(gradients, step.stages), step)
        assert theirs.keys() == published_gradients(family).keys()
        for name, gradient in published_gradients(family).items():
            assert np.abs(gradient).max() > 1e-4, name
            np.testing.assert_allclose(theirs[name], gradient, rtol=0, atol=BOUND, err_msg=name)


@pytest.mark.parametrize("family", published.CONFIGS)
def test_transformers_loads_what_is_exported(family: str, tmp_path: Path) -> None:
    saved = transfer.import_folder(published.save(family, tmp_path), str(tmp_path / "saved"))
    out = transfer.export_checkpoint(str(saved), str(tmp_path / "out"))
    loaded, found = published.transformers.AutoModelForCausalLM.from_pretrained(
        out, attn_implementation="eager", output_loading_info=True
    )
    assert not any(found.values()), found
    np.testing.assert_array_equal(published.logits(loaded), published.logits(published.model(family)))


def step_that_shows(folder: str, shape: tuple[int, int, int]) -> tuple[TrainStep, dict[tuple, np.ndarray]]:
    """The step of the model in `folder` on a mesh, and what its loss saw: targets of a sample -> its logits."""
    seen: dict[tuple, np.ndarray] = {}

    def keep(logits_BSV: Any, targets_BS: Any) -> None:
        seen.update(
            {
                tuple(target): logits
                for logits, target in zip(np.asarray(logits_BSV), np.asarray(targets_BS), strict=True)
            }
        )

    def loss(logits_BSV: jax.Array, targets_BS: jax.Array) -> jax.Array:
        jax.debug.callback(keep, logits_BSV, targets_BS)
        return one_device.cross_entropy(logits_BSV, targets_BS)

    data, tensor, pipe = shape
    config = load_config(
        {
            "precision": "float32",
            "mesh": dict(data=data, tensor=tensor, pipe=pipe),
            "pipeline": dict(microbatches=pipe),
            "model": dict(init_from=folder),
            "data": dict(sequence=published.SEQUENCE, batch=published.BATCH),
        }
    )
    return assemble.train_step(config, mesh.build(config.mesh, jax.devices()[: config.mesh.devices]), loss=loss), seen


def batch_of(step: TrainStep) -> dict[str, np.ndarray]:
    m = step.config.pipeline.microbatches
    tokens, targets = (a.reshape(m, -1, published.SEQUENCE) for a in published.batch())
    return {"tokens": tokens, "targets": targets, "weights": np.ones(tokens.shape, np.float32)}


def as_published(leaves: dict[str, np.ndarray], step: TrainStep) -> dict[str, np.ndarray]:
    """Our gradients under their names, by the table that export goes by; experts put together as in their memory."""
    sizes, found = assemble.model_sizes(step.config, None), {}
    for theirs, ours in joint(sizes, {name: leaf.shape for name, leaf in leaves.items()}).items():
        whole = np.concatenate([leaves[name] for name in ours], -1)
        if tensors(sizes)[ours[0]].transposed:
            whole = whole.swapaxes(-1, -2)
        layers = range(sizes.layers) if "{layer}" in theirs else [None]
        found |= {theirs.format(layer=k, expert="*"): whole[k] if k is not None else whole for k in layers}
    return found


def published_gradients(family: str) -> dict[str, np.ndarray]:
    """Their gradients; experts, which they hold as two arrays of a layer, under the names of the files."""
    found = {}
    for name, gradient in published.gradients(family).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name.replace("mlp.gate.weight", ROUTERS.get(family, "mlp.gate") + ".weight")] = gradient
            continue
        prefix = name[: name.index("mlp.")]
        gate, up, down = EXPERTS[family]
        if name.endswith("gate_up_proj"):
            parts = dict(zip((gate, up), np.split(gradient, 2, axis=1), strict=True))
        else:
            parts = {down: gradient}
        found |= {f"{prefix}{part}.weight": value for part, value in parts.items()}
    return found


ROUTERS = {"mixtral": "block_sparse_moe.gate"}
EXPERTS = {
    "mixtral": [f"block_sparse_moe.experts.*.w{k}" for k in (1, 3, 2)],
    "qwen3-moe": [f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")],
}
