"""A run so small that a test can afford many of them, and what it leaves."""

import json
from pathlib import Path
from typing import Any

STEPS, BATCH = 12, 16
CONFIG = """
steps = 12
precision = "float32"
log_every = 1
evaluate_every = 6

[checkpoint]
every = ["4 steps"]
keep = ["last 10"]

[model]
layers = 2
width = 16
heads = 2
kv_heads = 2
mlp_width = 16
dropout = 0.1

[optimizer]
learning_rate = 1e-2
warmup_steps = 2

[data]
sequence = 16
batch = 16
"""


def write_text(folder: Path) -> Path:
    path = folder / "sums.txt"
    path.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(600)))
    return path


def curve(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without what the clock gives."""
    return [{name: value for name, value in record.items() if name != "tokens_per_second"} for record in records]


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def saved(folder: Path) -> list[int]:
    """Steps of the whole checkpoints of a run."""
    return sorted(int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdecimal())
