"""One batch on its way through a step: what moves at each stage of the journey, how much, over which link."""

import dataclasses

from meshkit.planner.cluster import groups
from meshkit.view.devices import links
from meshkit.view.setting import Case


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the story. axis: whose exchange it is, "" for none. collective: its name. volume_bytes: of one,
    of a device; count: how often in a training step; link: what it crosses, "" when nothing moves between devices;
    seconds: of one; total_seconds: of all in a training step. shape: of what moves or is worked on, in words."""

    key: str
    axis: str
    collective: str
    shape: str
    volume_bytes: float
    count: float
    link: str
    bytes_per_second: float
    latency_seconds: float
    seconds: float
    total_seconds: float


STORY: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("cut_batch", "", (), ""),
    ("cut_microbatches", "", (), ""),
    ("embed", "pipe", ("embedding and head",), "all-reduce"),
    ("column", "", ("forward: linears",), ""),
    ("row", "", (), ""),
    ("partial_sums", "tensor", ("forward: partial sums",), "reduce-scatter + all-gather"),
    ("hop", "pipe", ("hops",), "permute"),
    ("loss", "tensor", ("head", "logits and their gradients"), "all-gather"),
    ("backward", "tensor", ("inputs: partial sums",), "reduce-scatter + all-gather"),
    ("reduce", "data", ("gradients", "weights: scatter gradients"), "reduce-scatter"),
    ("update", "", ("update",), ""),
    ("gather", "data", ("weights", "forward: gather weights"), "all-gather"),
)
"""Key, axis, the estimate's terms that it is (the first that there is counts its bytes), its collective."""


def story(case: Case) -> list[Step]:
    """The part of the page that Data tells."""
    peers, by_level, terms = groups(case.setting.mesh, case.cluster), links(case), case.estimate.terms
    shapes = _shapes(case)
    steps = []
    for key, axis, names, collective in STORY:
        mine = [term for name in names for term in terms if term.name == name]
        level = peers[axis].level if axis and peers[axis].size > 1 else None
        link = by_level[level] if level is not None else None
        first = mine[0] if mine else None
        count = first.repeats if first else 0.0
        steps.append(
            Step(
                key,
                axis,
                collective if link else "",
                shapes.get(key, ""),
                first.volume if first and first.unit == "B" and axis else 0.0,
                count,
                link.name if link else "",
                link.reached_bytes_per_second if link else 0.0,
                first.extra if first and link else 0.0,
                first.seconds / count if first and count else 0.0,
                sum(term.seconds for term in mine),
            )
        )
    return steps


def _shapes(case: Case) -> dict[str, str]:
    """What each step works on, by key."""
    setting, sizes, b = case.setting, case.job.sizes, case.layout.microbatch
    S, H, T, P = setting.sequence, sizes.width, setting.tensor, setting.pipe
    share, element = setting.batch // setting.data, "bfloat16"
    return {
        "cut_batch": f"[{setting.batch}, {S}] → {setting.data} × [{share}, {S}] tokens",
        "cut_microbatches": f"[{share}, {S}] → {setting.microbatches} × [{b}, {S}] tokens",
        "embed": f"[{b}, {S}] → [{b}, {S // T}, {H}] {element}; table [{sizes.vocab} / {T * P}, {H}]",
        "column": f"[{b}, {S}, {H}] × [{H}, {sizes.mlp_width} / {T}]",
        "row": f"[{b}, {S}, {sizes.mlp_width} / {T}] × [{sizes.mlp_width} / {T}, {H}]",
        "partial_sums": f"{T} × [{b}, {S}, {H}] {element}, summed",
        "hop": f"[{b}, {S} / {T}, {H}] {element}",
        "loss": f"[{b}, {S}, {sizes.vocab} / {T * P}] float32",
        "backward": f"{T} × [{b}, {S}, {H}] {element}, summed",
        "reduce": f"gradients of stage's layers / {T}, float32",
        "update": f"weights and two moments, float32{f' / {setting.data}' if setting.zero else ''}",
        "gather": f"weights of stage's layers / {T}, {element}",
    }
