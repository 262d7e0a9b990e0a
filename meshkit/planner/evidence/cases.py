"""A row of a published table as something the planner can predict."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshkit.config import MeshShape
from meshkit.errors import MeshkitError
from meshkit.models.presets import Sizes
from meshkit.planner import cluster as clusters
from meshkit.planner.cluster import Cluster
from meshkit.planner.estimate import Estimate, estimate
from meshkit.planner.hardware import NETWORKS, accelerator
from meshkit.planner.layout import Job, Layout
from meshkit.planner.profile import PROFILES, Profile


class Row(dict[str, str]):
    """A row of the file at `path`, by column."""

    path: Path

    def __missing__(self, column: str) -> str:
        raise MeshkitError(f"{self.path}: it has no column {column}")


@dataclasses.dataclass(frozen=True)
class Case:
    """What was run, and what was measured of it.

    model: whose rows are compared with each other. seconds of a step; memory in bytes of the fullest device, or of
    the first and the last stage; out_of_memory: whether it failed so, None where the table does not tell.
    """

    table: str
    line: int
    model: str
    job: Job
    layout: Layout
    cluster: Cluster
    profile: Profile
    seconds: float | None = None
    memory: float | None = None
    stages: tuple[float, float] | None = None
    out_of_memory: bool | None = None

    @property
    def group(self) -> tuple[str, int, int]:
        """Rows of the same model, length and number of devices are ranked among themselves."""
        return self.model, self.job.sequence, self.cluster.devices

    def predicted(self) -> Estimate:
        """What the planner says."""
        return estimate(self.job, self.layout, self.cluster, self.profile)


def read(path: Path, columns: set[str]) -> list[tuple[int, Row]]:
    """(line, row) of a CSV file. Raises MeshkitError when it lacks one of the `columns`."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = columns - set(reader.fieldnames or ())
        if missing:
            raise MeshkitError(f"{path}: it has no column {', '.join(sorted(missing))}")
        found = [(line, Row(row)) for line, row in enumerate(reader, 2)]
    for _, row in found:
        row.path = path
    return found


def integers(row: Row, *columns: str) -> list[int]:
    """The integers in some cells of a row."""
    return [int(row[column]) for column in columns]


def integer(text: str) -> int | None:
    """An integer, or None where the cell is empty or says otherwise."""
    try:
        return int(float(text))
    except ValueError:
        return None


def number(text: str) -> float | None:
    """A number, or None where the cell is empty or says otherwise."""
    try:
        return float(text)
    except ValueError:
        return None


def gpt(shape: Sequence[int], tied: bool = True) -> Sizes:
    """A GPT of (layers, width, heads, vocabulary, sequence): LayerNorm, biases, a GELU MLP of four widths."""
    layers, width, heads, vocab, sequence = shape
    return Sizes("gpt2", layers, width, heads, heads, width // heads, 4 * width, vocab, sequence, tied, dropout=0.1)


def llama(shape: Sequence[int], kv_heads: int | None = None, tied: bool = False) -> Sizes:
    """A Llama of (layers, width, heads, MLP width, vocabulary, sequence)."""
    layers, width, heads, mlp, vocab, sequence = shape
    return Sizes("llama", layers, width, heads, kv_heads or heads, width // heads, mlp, vocab, sequence, tied)


def case(
    table: str,
    line: int,
    model: str,
    sizes: Sizes,
    kind: str,
    mesh: tuple[int, int, int],
    batch: int,
    sequence: int,
    microbatch: int,
    profile: str | Profile,
    virtual: int = 1,
    recompute: str = "none",
    zero: int = 1,
    sequence_parallel: bool = True,
    precision: str = "bfloat16",
    network: str | None = None,
    **measured: Any,
) -> Case | None:
    """The Case of a layout; None where its numbers do not go together."""
    data, tensor, pipe = mesh
    if min(mesh) < 1 or microbatch < 1 or batch % (data * microbatch) or sizes.layers < pipe * virtual:
        return None
    devices = data * tensor * pipe
    per_node = min(accelerator(kind).node, devices)
    if devices % per_node:
        return None
    on = clusters.regular(accelerator(kind), devices, per_node, NETWORKS.get(network or ""))
    layout = Layout(
        MeshShape(data=data, tensor=tensor, pipe=pipe),
        microbatch,
        batch // (data * microbatch),
        "interleaved" if virtual > 1 else "1f1b",
        virtual,
        recompute,
        zero,
        sequence_parallel,
    )
    framework = PROFILES[profile] if isinstance(profile, str) else profile
    return Case(table, line, model, Job(model, sizes, batch, sequence, precision), layout, on, framework, **measured)
