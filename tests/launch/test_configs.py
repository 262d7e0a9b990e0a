"""Every shipped config is whole: it reads, cuts, and splits into microbatches on the devices it is for."""

from pathlib import Path

import pytest

from meshkit.config import RunConfig, load
from meshkit.mesh import crossings, resolve
from meshkit.models.presets import check_cut, sizes
from meshkit.optimizer import learning_rate
from meshkit.pipeline.builders import BUILDERS

CONFIGS = sorted((Path(__file__).parents[2] / "launch" / "configs").glob("*.toml"))
DEVICES = {"quickstart": 8, "llama3-8b": 8, "llama3-70b": 64}


def test_the_configs_that_the_readme_names_are_there() -> None:
    assert {path.stem for path in CONFIGS} >= DEVICES.keys()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_whole(path: Path) -> None:
    config = load(path)
    mesh = resolve(config.mesh, DEVICES[path.stem])
    assert mesh == config.mesh, "a config for a cluster states its mesh"
    check_cut(sizes(config.model), mesh, config.data.sequence)
    assert config.microbatch_size(mesh.data) >= 1
    learning_rate(config.optimizer, config.steps)
    assert config.pipeline.schedule in BUILDERS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_tensor_peers_share_a_node_of_8(path: Path) -> None:
    config = load(path)
    nodes = [i // 8 for i in range(config.mesh.devices)]
    assert crossings(config.mesh, nodes)["tensor"] == 0


def tokens_a_step(config: RunConfig) -> int:
    return config.data.batch * config.data.sequence


def test_the_70b_layout_is_the_worked_case() -> None:
    config = load(CONFIGS[[path.stem for path in CONFIGS].index("llama3-70b")])
    assert tuple(config.mesh.sizes.values()) == (8, 4, 2)
    assert config.microbatch_size(8) == 1
    assert config.pipeline.microbatches == 64
    assert tokens_a_step(config) == 2_097_152
    nodes = [i // 8 for i in range(64)]
    assert crossings(config.mesh, nodes) == {"data": 8, "tensor": 0, "pipe": 0}
