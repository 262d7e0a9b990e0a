"""The page's file: the committed build is that of the source, and an exported page needs nothing else."""

import base64
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from meshkit import cli
from meshkit.cli import main
from meshkit.errors import MeshkitError
from meshkit.pipeline import builders, grid
from meshkit.planner import search
from meshkit.view import code, command, devices, export
from meshkit.view.choices import choices
from meshkit.view.page_file import PAGE, Boot, page, source_digest
from meshkit.view.payload import PARTS, plain, to_json
from meshkit.view.setting import Setting, parse, resolve
from meshkit.view.world import World

ROOT = Path(__file__).parents[2]
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
    assert built == source_digest(ROOT), "the page's source changed: run `make page`"


def test_the_build_asks_for_nothing() -> None:
    html = PAGE.read_text(encoding="utf-8")
    outside_scripts = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="(?!data:)[^"#]+"', outside_scripts) == []
    assert re.findall(r"<script[^>]+src=", html) == []
    assert re.findall(r"url\((?!data:|\"data:)[^)]{1,80}\)", outside_scripts) == []
    assert set(re.findall(r"https?://[\w./-]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1998/Math/MathML",
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/XML/1998/namespace",
        "https://github.com/markedjs/marked.",  # in its licence
    }


def put_together(packed: Any) -> Any:
    """As api.ts does it."""
    if isinstance(packed, list):
        return [put_together(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if "steps" in packed:
        return [total / export.PER_ONE for total in itertools.accumulate(packed["steps"])]
    return {key: put_together(value) for key, value in packed.items()}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_comes_out_of_the_file_as_it_went_in(name: str) -> None:
    part = json.loads(to_json(PARTS[name](resolve(World.of(), Setting(pipe=4, microbatches=32, batch=256)))))
    packed = json.loads(json.dumps(export.in_steps(part)))
    assert put_together(packed) == part
    assert name != "schedule" or len(json.dumps(packed)) < len(json.dumps(part)) * 1.2


def test_a_large_schedule_stays_small_in_a_file() -> None:
    world, tables = World.of(), {}
    hub = Setting("llama3-405b", data=4, tensor=8, pipe=16, batch=2048, microbatches=512)
    for zero in (0, 1, 2, 3):
        tables[zero] = export.in_steps(plain(PARTS["schedule"](resolve(world, hub.but({"zero": zero})))))
    assert len(gzip.compress(to_json(tables).encode(), 9)) / len(tables) < MOST / 100


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("export")
    (folder / "config.toml").write_text(CONFIG)
    world, boot = command.prepare(str(folder / "config.toml"), "h100")
    boot = Boot(boot.query, boot.presets[:1], {}, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "FROM_FIRST", ())
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


def test_a_grid_layers_and_overlap_of_a_config_are_shown_and_exported(tmp_path: Path) -> None:
    file, path = tmp_path / "mine.txt", tmp_path / "config.toml"
    file.write_text(grid.unparse(builders.build("gpipe", 2, 4, hop=2)))
    own = f'schedule = "{file}"\noverlap = true\nlayers_per_stage = [3, 1]'
    path.write_text(CONFIG.replace("microbatches = 4", f"microbatches = 4\n{own}"))
    world, boot = command.prepare(str(path), "h100")
    first = parse(boot.query)
    assert (first.schedule, first.overlap, first.layers) == (str(file), "true", "3,1")
    assert (world.schedules[0], world.layers) == (str(file), ("3,1", "balanced"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "FROM_FIRST", ())
        pack = json.loads(export.pack(world, Boot(boot.query, boot.presets[:1], {})))
    held = {parse(query) for query in pack["settings"]}
    assert {first, first.but({"schedule": "1f1b"}), first.but({"layers": "balanced"})} <= held
    drawn = put_together(pack["parts"][pack["settings"][boot.query]["schedule"]])
    assert drawn == json.loads(to_json(PARTS["schedule"](resolve(world, first))))


def test_keys_on_the_command_line_go_over_those_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    written = []
    monkeypatch.setattr(export, "write", lambda world, boot, path: written.append(parse(boot.query)) or 0)
    file = ["--export", str(tmp_path / "page.html")]
    assert main(["view", str(path), *file, "--mesh.pipe", "4", "--zero=3", "--cluster", "h200"]) == 0
    [first] = written
    assert (first.data, first.pipe, first.zero, first.cluster) == (1, 4, 3, "h200")
    for wrong, message in (
        (["--mesh.pip", "4"], "an override: unknown key 'mesh.pip'; did you mean 'mesh.pipe'"),
        (["--zero", "7"], "an override: zero = 7"),
        (["--no-browse"], "--no-browse needs a value: --no-browse VALUE; did you mean '--no-browser'"),
    ):
        assert main(["view", str(path), *file, *wrong]) == 1
        assert message in capsys.readouterr().err
    assert main(["view", "--mesh.pipe", "4"]) == 1
    assert "--mesh.pipe is a key of a config: give one before it" in capsys.readouterr().err


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
        ('devices = 2\n[pipeline]\nschedule = "my.txt"\n', "pipeline.schedule = 'my.txt': no such file"),
        ('devices = 2\n[pipeline]\nschedule = "2f2b"\n', "pipeline.schedule = '2f2b': no such schedule"),
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


OWN_CLUSTER = """
nodes = 4
per_node = 4
per_rack = 2
[device]
name = "x1"
tflops = 400
memory = 64
bandwidth = 2.0
[links.node]
name = "fabric"
bandwidth = 200
[links.network]
bandwidth = 25
[links.spine]
name = "Ethernet"
bandwidth = 6
"""


@pytest.fixture
def own_cluster(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(OWN_CLUSTER)
    return str(path)


def test_a_cluster_of_ones_own_is_drawn_with_its_nodes_racks_and_links(own_cluster: str) -> None:
    world, boot = command.prepare(None, own_cluster)
    case = resolve(world, parse(boot.query))
    assert (case.setting.cluster, case.setting.mesh.devices) == ("mine.toml", 16)
    assert case.estimate.fits
    part = devices.mesh(case)
    assert (part.nodes, part.per_node, part.nodes_per_rack) == (4, 4, 2)
    assert [link.name for link in part.links] == ["fabric", "link", "Ethernet"]
    assert choices(world, case.setting)["cluster"][0].value == "mine.toml"


def test_no_more_devices_than_a_cluster_has(own_cluster: str) -> None:
    world, boot = command.prepare(None, own_cluster)
    first = parse(boot.query)
    with pytest.raises(MeshkitError, match="takes 32 devices and the cluster has 16"):
        resolve(world, Setting("llama3-8b", first.cluster, data=16, tensor=1, microbatches=8))


def test_a_clusters_devices_are_those_of_a_mesh_left_open(tmp_path: Path, own_cluster: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[mesh]\ntensor = 2\npipe = 2\n[model]\npreset = 'tiny'\n[data]\nbatch = 16\n")
    assert parse(command.prepare(str(path), own_cluster)[1].query).data == 4
    assert parse(command.prepare(str(path), "8xa100-80")[1].query).data == 2
    with pytest.raises(MeshkitError, match="--cluster 64xh100"):
        command.prepare(str(path), "h100")


def test_without_a_config_a_cluster_gets_the_planners_best() -> None:
    world, boot = command.prepare(None, "8xrtx4090")
    case = resolve(world, parse(boot.query))
    assert (case.setting.model, case.setting.mesh.devices) == ("llama3-8b", 8)
    best = search.search(case.job, case.cluster).best[0]
    assert (best.layout, best.step) == (case.layout, case.estimate.step)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("h1000", "no such kind of devices; did you mean"),
        ("64xh1000", "not in the catalogue"),
        ("0xh100", "write a number of devices and their kind"),
        ("12xh100", "do not fill nodes of 8"),
        ("absent.toml", "absent.toml"),
    ],
)
def test_a_wrong_cluster_is_an_error(capsys: pytest.CaptureFixture[str], cluster: str, message: str) -> None:
    assert main(["view", "--cluster", cluster, "--no-browser"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "why"), [("absent/page.html", "there is no folder"), (".", "it is a folder")])
def test_a_file_that_cannot_be_is_said_before_it_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(export, "write", lambda *_: pytest.fail("computed all the same"))
    assert main(["view", "--export", str(tmp_path / name)]) == 1
    assert f"cannot be written: {why}" in capsys.readouterr().err


# --- what the page points at --------------------------------------------------------------------------

LEARN = ("docs/learn.md", "docs/learn.zh.md")
REFERENCE = re.compile(r"(?:meshkit|models|launch)/[\w/]+\.py:[\w.]+")
LINK = re.compile(r"\[`([\w.]+)` · ([\w/.]+)\]\(\.\./([\w/.]+)\)")


def test_the_code_that_is_pointed_at_is_there() -> None:
    """The page's own links and those of its chapters, no more and no fewer; each with the lines that its file has."""
    page_source = [path.read_text(encoding="utf-8") for path in (ROOT / "meshkit/view/page/src").rglob("*.ts*")]
    pointed = {found for text in page_source for found in REFERENCE.findall(text)}
    for name in LEARN:
        for function, shown, path in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
            assert shown == path
            pointed.add(f"{path}:{function}")
    assert pointed == set(code.CODE)
    for reference, snippet in code.snippets().items():
        lines = (ROOT / reference.partition(":")[0]).read_text(encoding="utf-8").splitlines()
        told = snippet.text.splitlines()
        assert lines[snippet.line - 1 : snippet.line - 1 + len(told)] == told


def test_both_chapters_say_the_same() -> None:
    """Headings, pictures, commands and links of the two languages are alike; only words differ, in pictures too."""
    told = []
    for name in LEARN:
        text = (ROOT / name).read_text(encoding="utf-8")
        marks = re.findall(r"^(#+) |^!\[.+\]\((.+)\)$|^`(meshkit .+)`$|\]\((\.\./.+)\)", text, re.MULTILINE)
        told.append([(*mark[:1], mark[1].replace(".zh.", "."), *mark[2:]) for mark in marks])
        assert all((".zh." in picture) == (".zh." in name) for _, picture, *_ in marks if picture)
        for _, picture, _, _ in marks:
            assert not picture or (ROOT / "docs" / picture).is_file(), picture
    assert told[0] == told[1]
    assert [mark for mark, *_ in told[0]].count("##") == 9


def test_the_commands_of_the_chapters_are_commands() -> None:
    text = (ROOT / LEARN[0]).read_text(encoding="utf-8")
    for line in re.findall(r"^`meshkit (.+)`$", text, re.MULTILINE):
        cli._parser().parse_known_args(line.split())
