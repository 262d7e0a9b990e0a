"""The arrows between modules, and the size of a file."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOMES = {"meshkit": ROOT / "meshkit", "meshkit.models": ROOT / "models", "meshkit.launch": ROOT / "launch"}

# They start in a fraction of a second, on a machine without any accelerator or JAX installation.
WITHOUT_JAX = [
    "meshkit",
    "meshkit.cli",
    "meshkit.config",
    "meshkit.errors",
    "meshkit.launch.command",
    "meshkit.launch.k8s",
    "meshkit.launch.local",
    "meshkit.launch.slurm",
    "meshkit.distributed.launchers",
    "meshkit.mesh",
    "meshkit.metrics",
    "meshkit.overrides",
    "meshkit.pipeline.builders",
    "meshkit.pipeline.costs",
    "meshkit.pipeline.grid",
    "meshkit.pipeline.schedule",
    "meshkit.pipeline.timeline",
    "meshkit.planner",
    "meshkit.planner.calibrate",
    "meshkit.planner.command",
    "meshkit.planner.evidence.fit",
    "meshkit.planner.evidence.report",
    "meshkit.planner.forecast",
    "meshkit.distributed.rendezvous",
    "meshkit.show.examine",
    "meshkit.simulate",
    "meshkit.view",
]

# From the command line to the collective: each may import those after it, never those before.
CHAIN = [
    "meshkit.cli",
    "meshkit.trainer",
    "meshkit.train_step",
    "meshkit.pipeline.executor",
    "meshkit.pipeline.schedule",
    "meshkit.mesh",
    "meshkit.config",
    "meshkit.errors",
]

# What a model may know of the framework.
SEEN_BY_MODELS = re.compile(
    r"meshkit\.(config|errors|imports|mesh|models(\..*)?|pipeline\.(collectives|context|stage|vocab)|sharding)"
)


def modules() -> dict[str, Path]:
    """Dotted name -> file, of everything that the wheel installs."""
    found = {}
    for package, home in HOMES.items():
        for path in sorted(home.rglob("*.py")):
            parts = [package, *path.relative_to(home).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Every module that `path` may import, wherever the import stands."""
    known = modules()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the arrows"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else str(node.module) for name in names)


MODULES = modules()


@pytest.mark.parametrize("module", [name for name in WITHOUT_JAX if name in MODULES])
def test_imports_no_jax(module: str) -> None:
    program = f"import sys, {module}; sys.exit('jax' in sys.modules or 'jaxlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.parametrize("module", [name for name in CHAIN if name in MODULES])
def test_arrows_point_down(module: str) -> None:
    above = set(CHAIN[: CHAIN.index(module)])
    assert not above & set(imported(MODULES[module]))


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("meshkit.models")])
def test_framework_names_no_model(module: str) -> None:
    """A config names the model; what is known by name are tables: presets, families, how they are published."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    words = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [word for word in words if re.fullmatch(r"meshkit\.models[\w.:]*", word)]
    named += [name for name in imported(MODULES[module]) if name.startswith("meshkit.models")]
    tables = ("presets", "families", "build", "config_json", "names", "published")
    assert set(named) <= {f"meshkit.models.{table}" for table in tables}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("meshkit.models")])
def test_models_see_only_their_side_of_the_framework(module: str) -> None:
    ours = [name for name in imported(MODULES[module]) if name.split(".")[0] == "meshkit"]
    assert [name for name in ours if not SEEN_BY_MODELS.fullmatch(name)] == []


def test_one_file_builds_a_mesh() -> None:
    builders = [name for name, path in MODULES.items() if re.search(r"\b(Mesh|make_mesh)\(", path.read_text())]
    assert builders == ["meshkit.mesh"]


@pytest.mark.parametrize("module", MODULES)
def test_a_file_is_one_subject(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 300
