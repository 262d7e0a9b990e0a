"""Adapters for others: beside their base, as the package `peft` reads them, or merged into its weights.

Our x·A·B is their x·Aᵀ·Bᵀ: they hold A as [rank, in] and B as [out, rank].
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from meshkit.checkpoint.record import Record
from meshkit.checkpoint.slices import Saved
from meshkit.errors import MeshkitError
from meshkit.hf.weights import Weights
from meshkit.models import names
from meshkit.models.families import Adapters

MODEL, CONFIG = "adapter_model.safetensors", "adapter_config.json"
KERNEL, A, B = ".kernel", ".lora.a", ".lora.b"


class Merged:
    """The base's parameters with what the adapters of a checkpoint add; read as either is."""

    def __init__(self, base: Saved | Weights, own: Saved, adapters: Adapters) -> None:
        self._base, self._own, self._scale = base, own, adapters.alpha / adapters.rank
        self.shapes = base.shapes

    def dtype(self, name: str) -> str:
        """That of the base."""
        return self._base.dtype(name)

    def layers_at_once(self, name: str) -> int:
        """That of the base."""
        return self._base.layers_at_once(name)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A slice of a parameter that does not belong to blocks, as it is."""
        return self._base.read(name, index)

    def read_layers(self, name: str, layers: range, index: tuple[slice, ...]) -> np.ndarray:
        """Slices `index` of some layers of a parameter of blocks, stacked; a sum is made in float32 at least."""
        values = self._base.read_layers(name, layers, index)
        linear = name.removesuffix(KERNEL)
        if name == linear or linear + A not in self._own.shapes:
            return values
        rows, columns = index
        a, b = (
            self._own.read_layers(linear + part, layers, part_index)
            for part, part_index in ((A, (rows, slice(None))), (B, (slice(None), columns)))
        )
        wide = np.result_type(a.dtype, np.float32)
        return values.astype(wide) + self._scale * (a.astype(wide) @ b.astype(wide))


def write(folder: Path, own: Saved, record: Record, dtype: Any) -> None:
    """adapter_config.json and adapter_model.safetensors of a checkpoint's adapters into `folder`.

    Raises MeshkitError for an adapter of a linear that is a part of one of theirs: they have one adapter for the whole.
    """
    from safetensors.numpy import save_file

    sizes = record.sizes
    adapters, known = sizes.adapters, names.tensors(sizes)
    assert adapters is not None, "only adapters are written here"
    linears = sorted(name.removesuffix(A) for name in own.shapes if name.endswith(A))
    tensors, targets = {}, []
    for linear in linears:
        theirs = known[linear + KERNEL]
        if theirs.parts > 1:
            raise MeshkitError(
                f"{theirs.name} holds {theirs.parts} of our linears, among them {linear}: `peft` has one adapter for "
                "them all; export with --merge"
            )
        module = theirs.name.removesuffix(".weight")
        targets.append(".".join(module.split(".")[-2:]))
        for part, called in ((A, "lora_A"), (B, "lora_B")):
            for layer in range(sizes.layers):
                (values,) = own.read_layers(linear + part, [layer], (slice(None), slice(None)))
                name = f"base_model.model.{module.format(layer=layer)}.{called}.weight"
                tensors[name] = np.ascontiguousarray(values.T.astype(dtype))
    save_file(tensors, folder / MODEL, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": record.base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "target_modules": targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": sizes.family == "gpt2",
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
