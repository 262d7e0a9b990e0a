"""The wheel, installed in an environment of its own, works beside a user's own `models` folder."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import meshkit

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


KINDS = ("*.py", "*.toml", "*.csv", "py.typed", "static/index.html")


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """A wheel, the environment that holds it, and the folder to work in."""

    wheel: Path
    env: Path
    work: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    tmp = tmp_path_factory.mktemp("package")
    source, work, env = tmp / "source", tmp / "work", tmp / "env"
    # A copy, so that what an earlier build left behind cannot slip in.
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "shared", "node_modules", "*.egg-info"),
    )
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp, cwd=source)
    [wheel] = tmp.glob("*.whl")

    venv.create(env)
    run(sys.executable, "-m", "pip", "--python", env / "bin/python", "install", "--no-deps", "-q", wheel, cwd=tmp)
    # The dependencies of the environment that runs the tests, but not its own meshkit.
    [packages] = env.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    (work / "models").mkdir(parents=True)
    (work / "models" / "__init__.py").write_text("raise AssertionError('the decoy was imported')\n")
    return Installed(wheel, env, work)


def test_wheel_holds_the_whole_tree_under_one_name(installed: Installed) -> None:
    held = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}
    homes = {"meshkit": "meshkit", "models": "meshkit/models", "launch": "meshkit/launch"}
    paths = [path for home in homes for kind in KINDS for path in (ROOT / home).rglob(kind)]
    relative = [path.relative_to(ROOT) for path in paths]
    assert held == {f"{homes[path.parts[0]]}/{'/'.join(path.parts[1:])}" for path in relative}


def test_models_are_the_wheels_own(installed: Installed) -> None:
    program = "import meshkit.models, meshkit.launch; print(meshkit.models.__file__, meshkit.launch.__file__)"
    for file in run(installed.env / "bin/python", "-c", program, cwd=installed.work).split():
        assert Path(file).is_relative_to(installed.env)


def test_command_runs(installed: Installed) -> None:
    meshkit_command = installed.env / "bin/meshkit"
    assert run(meshkit_command, "--version", cwd=installed.work) == f"meshkit {meshkit.__version__}\n"
    assert "usage: meshkit train" in run(meshkit_command, "train", "--help", cwd=installed.work)


def test_demo_runs_from_the_wheel(installed: Installed) -> None:
    assert "Every cut equals" in run(installed.env / "bin/meshkit", "demo", cwd=installed.work)


def test_import_is_quick_and_lazy() -> None:
    program = "import time; t = time.perf_counter(); import meshkit; print(time.perf_counter() - t)"
    assert min(float(run(sys.executable, "-c", program, cwd=ROOT)) for _ in range(3)) < 0.3


@pytest.mark.parametrize("name", ["MeshShape", "MeshkitError", "RunConfig", "train"])
def test_public_names(name: str) -> None:
    assert getattr(meshkit, name).__name__ == name
    assert name in dir(meshkit)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="trian"):
        _ = meshkit.trian


def test_constraints_are_names_and_versions_and_cover_the_dependencies() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r'[\w.-]+==[\w.]+(; python_version (<|>=) "3\.12")?', pin)] == []
    project = PYPROJECT["project"]
    extras = [need for name in ("dev", "hf", "compile") for need in project["optional-dependencies"][name]]
    needed = {re.split(r"[<>=\[;]", need)[0] for need in [*project["dependencies"], *extras]}
    pinned = {pin.partition("==")[0] for pin in pins}
    assert {name.lower().replace("_", "-") for name in needed} <= {name.lower().replace("_", "-") for name in pinned}
