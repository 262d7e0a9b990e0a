"""One batch on its way through a step: what moves at each stage of the journey, how much, over which link."""

import dataclasses

from meshkit.planner.cluster import groups
from meshkit.planner.workload import COMPUTE
from meshkit.view.devices import Exchange, exchanges
from meshkit.view.setting import Case
from meshkit.view.words import Text


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the story. axis: whose exchange it is, "" for none. collective: its name; link: index into the
    mesh's links of the widest that it crosses; "" and −1 when nothing moves between devices. shape: of what moves or
    is worked on. exchanges: of a training step, the longest first; compute_seconds: what a training step computes here.
    """

    key: str
    axis: str
    collective: str
    shape: Text
    link: int
    exchanges: list[Exchange]
    compute_seconds: float


STORY: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("cut_batch", "", (), ""),
    ("cut_microbatches", "", (), ""),
    ("embed", "pipe", ("embedding and head",), "all-reduce"),
    ("column", "", ("forward: ",), ""),
    ("row", "", (), ""),
    ("partial_sums", "tensor", ("forward: partial sums",), "reduce-scatter + all-gather"),
    ("hop", "pipe", ("hops",), "permute"),
    ("loss", "tensor", ("head", "logits and their gradients", "cross-entropy"), "all-gather"),
    ("backward", "tensor", ("inputs: ", "weights: "), "reduce-scatter + all-gather"),
    ("reduce", "data", ("gradients", "weights: scatter gradients"), "reduce-scatter"),
    ("update", "", ("update",), ""),
    (
        "gather",
        "data",
        ("weights", "forward: gather weights", "inputs: gather weights", "weights: gather weights"),
        "all-gather",
    ),
)
"""Key, axis, the estimate's terms that it is by name (or how names begin), its collective."""


def story(case: Case) -> list[Step]:
    """The part of the page that Data tells."""
    peers, shapes = groups(case.setting.mesh, case.cluster), _shapes(case)
    steps = []
    for key, axis, names, collective in STORY:
        is_mine = lambda name, names=names: any(
            name == one or (one[-1] == " " and name.startswith(one)) for one in names
        )
        moved = [one for one in exchanges(case, axis) if is_mine(one.name)] if axis else []
        computed = (term.seconds for term in case.estimate.terms if term.kind == COMPUTE and is_mine(term.name))
        how = "all-reduce" if key == "reduce" and case.setting.zero == 0 else collective
        steps.append(
            Step(
                key,
                axis,
                how if moved else "",
                shapes[key],
                peers[axis].level if moved else -1,
                sorted(moved, key=lambda one: -one.seconds),
                sum(computed),
            )
        )
    return steps


def _shapes(case: Case) -> dict[str, Text]:
    """What each step works on, by key."""
    setting, sizes, b = case.setting, case.job.sizes, case.layout.microbatch
    S, H, T, P = setting.sequence, sizes.width, setting.tensor, setting.pipe
    share, element, mlp = setting.batch // setting.data, setting.precision, sizes.mlp_width
    wide = "float64" if element == "float64" else "float32"
    rows, slices = f"{sizes.vocab} / {T * P}", f" / {setting.data}" if setting.zero else ""
    alike = lambda text: Text(text, text)
    summed = Text(f"{T} × [{b}, {S}, {H}] {element}, summed", f"{T} × [{b}, {S}, {H}] {element}，求和")
    batch, microbatch = f"[{setting.batch}, {S}] → {setting.data} ×", f"[{share}, {S}] → {setting.microbatches} ×"
    return {
        "cut_batch": alike(f"{batch} [{share}, {S}] tokens"),
        "cut_microbatches": alike(f"{microbatch} [{b}, {S}] tokens"),
        "embed": Text(
            f"[{b}, {S}] → [{b}, {S // T}, {H}] {element}, summed in {wide}; table [{rows}, {H}]",
            f"[{b}, {S}] → [{b}, {S // T}, {H}] {element}，以 {wide} 求和；词表 [{rows}, {H}]",
        ),
        "column": alike(f"[{b}, {S}, {H}] × [{H}, {mlp} / {T}]"),
        "row": alike(f"[{b}, {S}, {mlp} / {T}] × [{mlp} / {T}, {H}]"),
        "partial_sums": summed,
        "hop": alike(f"[{b}, {S} / {T}, {H}] {element}"),
        "loss": Text(
            f"[{b}, {S}, {H}] {element} → logits [{b}, {S}, {rows}] float32",
            f"[{b}, {S}, {H}] {element} → 得分 logits [{b}, {S}, {rows}] float32",
        ),
        "backward": summed,
        "reduce": Text(f"gradients of a stage's layers / {T}, float32", f"本 stage 各层的梯度 / {T}，float32"),
        "update": Text(f"weights and two moments, float32{slices}", f"权重与两个动量，float32{slices}"),
        "gather": Text(f"weights of a stage's layers / {T}, {element}", f"本 stage 各层的权重 / {T}，{element}"),
    }
