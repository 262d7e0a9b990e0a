"""`meshkit demo`: a two-layer perceptron cut in every way, on a real mesh, against plain NumPy.

    y = relu(x w1ᵀ) w2ᵀ        x [16, 32], w1 [64, 32], w2 [16, 64], float64

Each function below is one way to cut it, run by every device on the slices it holds. Suffixes say
the shape: B samples, I inputs (32), H hidden (64), O outputs (16), S stages (2), M microbatches.
A slice keeps the letter of what it was cut from.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

from meshkit import mesh
from meshkit.config import MeshShape
from meshkit.mesh import DATA, PIPE, TENSOR
from meshkit.pipeline.collectives import psum
from meshkit.simulate import simulate_cpu_devices

BATCH, INPUTS, HIDDEN, OUTPUTS, STAGES = 16, 32, 64, 16, 2
BOUND = 1e-12  # float64: what the order of summation may change, and no more

# --- the cuts -----------------------------------------------------------------------------------


def perceptron(x_BI: jax.Array, w1_HI: jax.Array, w2_OH: jax.Array) -> jax.Array:
    """y [B, O], as if nothing were cut. With x cut along B, or w2 along O, it is still all there is to do."""
    return jax.nn.relu(x_BI @ w1_HI.T) @ w2_OH.T


def row_cut(x_BI: jax.Array, w1_HI: jax.Array, w2_OH: jax.Array) -> jax.Array:
    """Both weights cut along H: each device has some hidden features, and a partial sum of every output."""
    partial_BO = perceptron(x_BI, w1_HI, w2_OH)
    return psum(partial_BO, TENSOR)  # Y = X₁W₁ + X₂W₂ + …


def replica_gradient(x_BI: jax.Array, w1_HI: jax.Array, w2_OH: jax.Array) -> tuple[jax.Array, jax.Array]:
    """dL/dw1, dL/dw2 of the mean loss over the batch, from each replica's mean over its own slice."""

    def loss(w1_HI: jax.Array, w2_OH: jax.Array) -> jax.Array:
        return 0.5 * jnp.mean(jnp.sum(perceptron(x_BI, w1_HI, w2_OH) ** 2, axis=1))

    gradient = jax.grad(loss, argnums=(0, 1))(w1_HI, w2_OH)
    return jax.lax.pmean(gradient, DATA)  # g = (1/D) Σ g_i: once a step


def pipeline(x_BI: jax.Array, w_SHI: jax.Array, *, microbatches: int) -> jax.Array:
    """Two stages, each on its own devices: stage 0 holds w1, stage 1 holds w2.

    w_SHI is this stage's [1, H, I]; H is cut over tensor: outputs of stage 0, inputs of stage 1.
    Returns [1, B, O], which only the last stage fills with the result.
    """
    stage = jax.lax.axis_index(PIPE)
    w_HI = w_SHI[0]
    x_MBI = x_BI.reshape(microbatches, -1, INPUTS)

    def first(x_BI: jax.Array, h_BH: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.relu(x_BI @ w_HI.T), jnp.zeros((len(x_BI), OUTPUTS))

    def last(x_BI: jax.Array, h_BH: jax.Array) -> tuple[jax.Array, jax.Array]:
        return h_BH, psum(h_BH @ w_HI[:, :OUTPUTS], TENSOR)

    h_BH = jnp.zeros((x_MBI.shape[1], w_HI.shape[0]))
    y_MBO = []
    for tick in range(microbatches + STAGES - 1):
        x_BI = x_MBI[min(tick, microbatches - 1)]  # after the last microbatch the first stage only repeats it
        h_BH, y_BO = jax.lax.cond(stage == 0, first, last, x_BI, h_BH)
        h_BH = jax.lax.ppermute(h_BH, PIPE, [(0, 1)])  # the activations of one microbatch go to the next stage
        y_MBO.append(y_BO)
    return jnp.concatenate(y_MBO[STAGES - 1 :])[None]


# --- the same in NumPy --------------------------------------------------------------------------


def numpy_forward(x_BI: np.ndarray, w1_HI: np.ndarray, w2_OH: np.ndarray) -> np.ndarray:
    """y [B, O], uncut."""
    return np.maximum(x_BI @ w1_HI.T, 0) @ w2_OH.T


def numpy_gradient(x_BI: np.ndarray, w1_HI: np.ndarray, w2_OH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """dL/dw1, dL/dw2 of L = ½ mean over B of Σ y², uncut, by hand."""
    h_BH = np.maximum(x_BI @ w1_HI.T, 0)
    dy_BO = h_BH @ w2_OH.T / len(x_BI)
    dz_BH = (dy_BO @ w2_OH) * (h_BH > 0)
    return dz_BH.T @ x_BI, dy_BO.T @ h_BH


# --- running and comparing ----------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One way to cut: a program for each device, the arrays with their specs, and what must come out."""

    cut: str
    shape: MeshShape
    program: Callable[..., Any]
    arrays: Mapping[str, tuple[np.ndarray, P]]
    out_specs: Any
    expected: Any
    result: Callable[[Any], Any] = lambda out: out


@dataclass(frozen=True)
class Row:
    """What one case showed. `held` tells, device by device, the slices read from the arrays' own shards."""

    cut: str
    mesh: str
    max_abs_error: float
    collectives: dict[str, int]
    held: list[str]

    @property
    def ok(self) -> bool:
        """Whether the cut result equals the uncut one."""
        return self.max_abs_error <= BOUND  # also False for NaN


@dataclass(frozen=True)
class Demo:
    """All rows of the demonstration."""

    rows: list[Row]

    @property
    def ok(self) -> bool:
        """Whether every cut kept the mathematics."""
        return all(row.ok for row in self.rows)

    def to_json(self) -> str:
        """The rows as a JSON object, for a program to read."""
        return json.dumps({"ok": self.ok, "bound": BOUND, "rows": [asdict(row) | {"ok": row.ok} for row in self.rows]})

    def print(self, console: Console | None = None) -> None:
        """The rows as a table."""
        table = Table("cut", "mesh", "max abs error", "collectives", "what each device held", show_lines=True)
        for row in self.rows:
            colour = "green" if row.ok else "bold red"
            error = f"[{colour}]{row.max_abs_error:.1e}{'' if row.ok else ' FAILED'}[/]"
            collectives = "\n".join(f"{name} ×{count}" for name, count in row.collectives.items()) or "none"
            table.add_row(row.cut, row.mesh.replace(" × ", "\n"), error, collectives, "\n".join(row.held))
        verdict = "Every cut equals" if self.ok else "NOT every cut equals"
        (console or Console()).print(table, f"{verdict} plain NumPy within {BOUND:.0e} (float64).")


def cases(data: int = 2, tensor: int = 2, microbatches: int = 4, seed: int = 0) -> list[Case]:
    """The perceptron of the module's docstring cut `data` and `tensor` ways and into two stages."""
    random = np.random.default_rng(seed)
    x_BI = random.normal(size=(BATCH, INPUTS))
    w1_HI = random.normal(size=(HIDDEN, INPUTS)) / INPUTS**0.5
    w2_OH = random.normal(size=(OUTPUTS, HIDDEN)) / HIDDEN**0.5
    # One array for both stages, cut over pipe: w2 transposed, as it has H in common with w1, and padded to I.
    w_SHI = np.stack([w1_HI, np.pad(w2_OH.T, ((0, 0), (0, INPUTS - OUTPUTS)))])
    y_BO = numpy_forward(x_BI, w1_HI, w2_OH)

    def arrays(x: P, w1: P, w2: P) -> dict[str, tuple[np.ndarray, P]]:
        return {"x": (x_BI, x), "w1": (w1_HI, w1), "w2": (w2_OH, w2)}

    def staged(cut: str, shape: MeshShape) -> Case:
        program = functools.partial(pipeline, microbatches=microbatches)
        arrays = {"x": (x_BI, P(DATA)), "w": (w_SHI, P(PIPE, TENSOR))}
        return Case(cut, shape, program, arrays, P(PIPE, DATA), y_BO, lambda y_SBO: y_SBO[-1])

    whole, by_data, by_tensor = P(), MeshShape(data=data), MeshShape(data=1, tensor=tensor)
    return [
        Case("batch: samples over data", by_data, perceptron, arrays(P(DATA), whole, whole), P(DATA), y_BO),
        Case(
            "gradient: mean over replicas",
            by_data,
            replica_gradient,
            arrays(P(DATA), whole, whole),
            whole,
            numpy_gradient(x_BI, w1_HI, w2_OH),
        ),
        Case(
            "columns: outputs of w2 over tensor, side by side",
            by_tensor,
            perceptron,
            arrays(whole, whole, P(TENSOR)),
            P(None, TENSOR),
            y_BO,
        ),
        Case(
            "rows: inputs of w2 over tensor, summed",
            by_tensor,
            row_cut,
            arrays(whole, P(TENSOR), P(None, TENSOR)),
            whole,
            y_BO,
        ),
        staged(f"stages: w[0] is w1, w[1] is w2ᵀ, {microbatches} microbatches", MeshShape(data=1, pipe=STAGES)),
        staged("all three together", MeshShape(data=data, tensor=tensor, pipe=STAGES)),
    ]


def run_case(case: Case) -> Row:
    """Run `case` on the first devices that its mesh needs, and compare."""
    devices = mesh.build(case.shape, jax.devices()[: case.shape.devices])
    placed = {name: jax.device_put(a, NamedSharding(devices, spec)) for name, (a, spec) in case.arrays.items()}
    specs = tuple(spec for _, spec in case.arrays.values())
    # check_vma=False: the replicas' gradients are summed by our own pmean, not by the differentiation.
    cut = jax.shard_map(case.program, mesh=devices, in_specs=specs, out_specs=case.out_specs, check_vma=False)
    compiled = jax.jit(cut).lower(*placed.values()).compile()
    result = case.result(compiled(*placed.values()))
    errors = jax.tree.map(lambda got, want: np.max(np.abs(np.asarray(got) - want)), result, case.expected)
    return Row(
        cut=case.cut,
        mesh=str(case.shape),
        max_abs_error=float(np.max(jax.tree.leaves(errors))),
        collectives=collectives(compiled.as_text() or ""),
        held=held(devices, placed),
    )


def collectives(text: str) -> dict[str, int]:
    """Name -> how often it stands in the text of a compiled program."""
    names = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
    return dict(Counter(re.findall(rf" ({names})(?:-start)?\(", text)))


def held(devices: jax.sharding.Mesh, arrays: Mapping[str, jax.Array]) -> list[str]:
    """A line a device: its coordinates, and the slice and shape of what it has of each array."""
    lines = []
    for place, device in np.ndenumerate(devices.devices):
        here = [f"{axis} {i}" for axis, i in zip(devices.axis_names, place, strict=True) if devices.shape[axis] > 1]
        slices = [f"{name}{_slice_on(device, array)}" for name, array in arrays.items()]
        lines.append(f"{' '.join(here)}: {'  '.join(slices)}")
    return lines


def _slice_on(device: jax.Device, array: jax.Array) -> str:
    [shard] = [shard for shard in array.addressable_shards if shard.device == device]
    parts = [part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)]
    cut = [":" if part == (0, size) else f"{part[0]}:{part[1]}" for part, size in zip(parts, array.shape, strict=True)]
    return f"[{', '.join(cut)}] {'×'.join(map(str, shard.data.shape))}"


def run_demo(data: int = 2, tensor: int = 2, microbatches: int = 4) -> Demo:
    """Every case on simulated CPU devices (data × tensor × 2 of them) in float64.

    Raises MeshkitError when JAX already runs on other devices.
    """
    simulate_cpu_devices(data * tensor * STAGES)
    with jax.enable_x64(True):
        return Demo([run_case(case) for case in cases(data, tensor, microbatches)])
