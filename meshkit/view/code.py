"""The code that the page and docs/learn.md point at: functions and classes of meshkit itself, as installed."""

import ast
import dataclasses
import functools
from importlib import resources

CODE: tuple[str, ...] = (
    "meshkit/data/loader.py:Loader.at",
    "meshkit/mesh.py:place",
    "meshkit/pipeline/builders.py:gpipe",
    "meshkit/pipeline/builders.py:interleaved",
    "meshkit/pipeline/builders.py:one_f_one_b",
    "meshkit/pipeline/builders.py:zero_bubble",
    "meshkit/pipeline/executor.py:_Run._backward",
    "meshkit/pipeline/executor.py:_Run._sent",
    "meshkit/pipeline/executor.py:_Run.tick",
    "meshkit/pipeline/grid.py:parse",
    "meshkit/pipeline/stage.py:cut_sequence",
    "meshkit/pipeline/timeline.py:Timeline.idle",
    "meshkit/pipeline/timeline.py:asynchronous",
    "meshkit/pipeline/timeline.py:lock_step",
    "meshkit/pipeline/vocab.py:VocabTable",
    "meshkit/pipeline/vocab.py:head",
    "meshkit/pipeline/vocab.py:lookup",
    "meshkit/planner/collectives.py:one_way",
    "meshkit/planner/estimate.py:Estimate",
    "meshkit/planner/explain.py:diagnose",
    "meshkit/planner/memory.py:_meshkit",
    "meshkit/planner/search.py:search",
    "meshkit/planner/step.py:lock_step",
    "meshkit/train_step.py:TrainStep._shared",
    "meshkit/train_step.py:TrainStep._step",
    "meshkit/equality/verify.py:verify",
    "meshkit/zero.py:Zero.reduced",
    "meshkit/zero.py:Zero.working",
    "models/layers.py:ColumnLinear",
    "models/layers.py:RMSNorm",
    "models/layers.py:RowLinear",
)
"""Path in the repository, and the name inside, of everything that is pointed at; the page uses no others."""


@dataclasses.dataclass(frozen=True)
class Snippet:
    """A piece of a file. line: its first."""

    line: int
    text: str


@functools.cache
def snippets() -> dict[str, Snippet]:
    """All of CODE. No module is imported for it but packages."""
    return {one: snippet(one) for one in CODE}


def snippet(reference: str) -> Snippet:
    """The source behind "path:name" or "path:Class.name", decorators included. Raises KeyError when it is not there."""
    path, _, name = reference.partition(":")
    top, *rest = path.split("/")
    package = top if top == "meshkit" else f"meshkit.{top}"  # models/ is installed inside meshkit
    source = resources.files(package).joinpath(*rest).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        node = _inside(node)[part]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return Snippet(first, "\n".join(source.splitlines()[first - 1 : node.end_lineno]))


def _inside(node: ast.AST) -> dict[str, ast.AST]:
    """Functions and classes by name, the last of each."""
    body = getattr(node, "body", [])
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
