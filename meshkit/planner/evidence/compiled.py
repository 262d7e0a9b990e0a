"""meshkit's own memory as XLA's CUDA compiler has it, as a table beside the published ones: meshkit_compiled.csv.

`python -m meshkit.planner.evidence.compiled` compiles every row's layout anew and writes what it found.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshkit.config import MeshShape, RunConfig, load
from meshkit.errors import MeshkitError
from meshkit.models.presets import sizes
from meshkit.planner import cluster as clusters
from meshkit.planner.compile import compile_step
from meshkit.planner.evidence.cases import Case, Row, integers, read
from meshkit.planner.hardware import GIB
from meshkit.planner.layout import Job, of_config
from meshkit.planner.profile import MESHKIT

TABLE = Path(__file__).with_name("meshkit_compiled.csv")

COLUMNS = {"model", "cluster", "data", "tensor", "pipe", "microbatch", "microbatches", "sequence"}
COLUMNS |= {"schedule", "virtual", "recompute", "zero", "peak_GiB", "jax"}


def compiled(path: Path) -> Iterator[Case | None]:
    """meshkit_compiled: all rows; memory alone, as no GPU ran them."""
    for line, row in read(path, COLUMNS):
        config = config_of(row)
        job = Job(row["model"], sizes(config.model), config.data.batch, config.data.sequence, config.precision)
        layout, on = of_config(config, config.mesh), clusters.parse(row["cluster"])
        yield Case(path.stem, line, row["model"], job, layout, on, MESHKIT, memory=float(row["peak_GiB"]) * GIB)


def config_of(row: Row) -> RunConfig:
    """The config of a row's layout; all else as the defaults are."""
    data, tensor, pipe, size, m, sequence, virtual, zero = integers(
        row, "data", "tensor", "pipe", "microbatch", "microbatches", "sequence", "virtual", "zero"
    )
    return load(
        {
            "model": {"preset": row["model"]},
            "mesh": MeshShape(data=data, tensor=tensor, pipe=pipe).sizes,
            "pipeline": {"schedule": row["schedule"], "virtual": virtual, "microbatches": m},
            "recompute": row["recompute"],
            "zero": zero,
            "data": {"batch": data * m * size, "sequence": sequence},
        }
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: compiles the rows of the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, metavar="LINE", help="the row in this line alone")
    options = parser.parse_args(argv)
    found = read(TABLE, COLUMNS)
    for line, row in found:
        if options.only not in (None, line):
            continue
        try:
            report = compile_step(config_of(row), clusters.parse(row["cluster"]))
        except MeshkitError as error:
            print(f"error: {TABLE.name}, line {line}: {error}", file=sys.stderr)
            return 1
        assert report.memory is not None, "compiled for GPUs"
        row |= {"peak_GiB": f"{report.memory.peak / GIB:.2f}", "jax": report.jax}
        print(f"line {line}: {report.layout}: {row['peak_GiB']} GiB", flush=True)
        with TABLE.open("w", newline="", encoding="utf-8") as file:  # after each: a compiler takes its time
            writer = csv.DictWriter(file, row, lineterminator="\n")
            writer.writeheader()
            writer.writerows(other for _, other in found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
