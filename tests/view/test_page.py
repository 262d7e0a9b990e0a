"""The page's file: the committed build is that of the source, and an exported page needs nothing else."""

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from meshkit.cli import main
from meshkit.errors import MeshkitError
from meshkit.view import command, export
from meshkit.view.page_file import PAGE, Boot, page, source_digest
from meshkit.view.payload import PARTS
from meshkit.view.setting import Setting, World, parse, resolve

SOURCE = Path(__file__).parents[2] / "meshkit/view/page"
SMALL = Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, batch=16, sequence=128, recompute="none")
CONFIG = """
devices = 8
recompute = "none"
[mesh]
tensor = 2
pipe = 2
[pipeline]
microbatches = 4
[model]
preset = "tiny"
[data]
batch = 16
"""
MOST = 3 * 2**20


def test_the_committed_build_is_that_of_the_source() -> None:
    """`make page` writes the digest of what it built from into the page."""
    [built] = re.findall(r'<meta name="source-sha256" content="(\w+)"', PAGE.read_text(encoding="utf-8"))
    assert built == source_digest(SOURCE), "the page's source changed: run `make page`"


def test_the_build_asks_for_nothing() -> None:
    html = PAGE.read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!data:)[^"#]+"', html) == []
    assert re.findall(r"url\((?!data:|\"data:)[^)]{1,80}\)", html) == []
    assert set(re.findall(r"https?://[\w./-]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1998/Math/MathML",
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/XML/1998/namespace",
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("export")
    (folder / "config.toml").write_text(CONFIG)
    world, boot = command.prepare(str(folder / "config.toml"), "h100")
    boot = Boot(boot.query, boot.presets[:1], {}, None)
    assert export.write(world, boot, folder / "page.html") < MOST
    return (folder / "page.html").read_text(encoding="utf-8")


def inside(html: str, name: str) -> str:
    [text] = re.findall(rf'<script id="meshkit-{name}" type="[\w/]+">(.*?)</script>', html, re.DOTALL)
    return text


def test_an_exported_page_holds_its_settings_and_their_parts(exported: str) -> None:
    boot = json.loads(inside(exported, "boot"))
    pack = json.loads(gzip.decompress(base64.b64decode(inside(exported, "pack"))))
    assert boot["query"] in pack["settings"]
    for query, parts in pack["settings"].items():
        assert set(parts) >= set(PARTS) - {"best"}
        overview = pack["parts"][parts["overview"]]
        assert overview["query"] == query
    own = resolve(World.of(), SMALL)
    first = pack["parts"][pack["settings"][boot["query"]]["overview"]]
    assert first["figures"]["step_seconds"] == pytest.approx(own.estimate.step, rel=1e-5)


def test_a_config_is_the_first_setting_and_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    world, boot = command.prepare(str(path), "h200")
    first = parse(boot.query)
    assert (first.model, first.cluster, first.data, first.tensor, first.pipe) == ("config", "h200", 2, 2, 2)
    assert boot.presets[0].name == "config"
    assert world.models["config"].layers == 4


def test_a_runs_folder_brings_its_timeline(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    assert command.prepare(str(tmp_path), "h100")[1].measured is None
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/timeline.json").write_text('{"traceEvents": []}')
    assert command.prepare(str(tmp_path), "h100")[1].measured == {"traceEvents": []}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("devices = 8\n[mesh]\npipe = 3\n", "takes a multiple of 3 devices"),
        ('devices = 1\n[model]\nfamily = "own:Model"\n', "not of other models"),
        ('devices = 1\nprecision = "float64"\n', "precision = float64: it is one of bfloat16, float32"),
        ("[mesh]\npipe = 2\n", "needs to know how many devices"),
        ('devices = 2\n[pipeline]\nschedule = "my.txt"\n', "meshkit schedule my.txt draws a file"),
    ],
)
def test_a_config_that_cannot_be_drawn_says_why(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(line)
    with pytest.raises(MeshkitError, match=message):
        command.prepare(str(path), "h100")


def test_a_config_is_shown_without_what_the_planner_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("offload = true\n" + CONFIG)
    with pytest.warns(UserWarning, match="offload = True: the view shows the layout without it"):
        command.prepare(str(path), "h100")


def test_a_text_in_the_boot_cannot_end_its_script() -> None:
    html = page(Boot("</script><b>", [], {}))
    assert json.loads(inside(html, "boot").replace("<\\/", "</"))["query"] == "</script><b>"


def test_an_unknown_cluster_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--cluster", "h1000", "--no-browser"]) == 1
    assert "no such cluster; known: " in capsys.readouterr().err
