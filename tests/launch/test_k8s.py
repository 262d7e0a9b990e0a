"""Manifests for Kubernetes, against its published schemas, and what a pod makes of them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from meshkit.cli import _parser, main
from meshkit.config import load
from meshkit.distributed import launchers
from meshkit.distributed.launchers import Place
from meshkit.errors import LATE, RESTART, SAVED
from meshkit.launch import flags
from meshkit.overrides import split_overrides

ODD = '# it\'s a `$HOME`: {x} & "more" – and\ttabs\nseed = 3\n'
VERSIONS = ("1.31", "1.37")  # podFailurePolicy is stable since the first


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The documents of a launch."""

    def write(*words: str) -> list[dict[str, Any]]:
        config = tmp_path / "My Run.toml"
        config.write_text(f"{ODD}[mesh]\ntensor = 4\n[data]\nbatch = 512\n")
        command = ["launch", "k8s", str(config), "--run_dir", f"{tmp_path}/runs/one", "--claim", "runs", *words]
        code = main([*command, "--image", "registry.example/meshkit:1", "--gpus-per-node", "8"])
        out, err = capsys.readouterr()
        assert code == 0, err
        assert out.rstrip("\n") == (tmp_path / "runs" / "one" / "job.yaml").read_text().rstrip("\n")
        return list(yaml.safe_load_all(out))

    return write


def as_run(command: list[str]) -> list[str]:
    """What Kubernetes makes of a command: $(NAME) is a variable, $$( stands for $(."""
    assert not any(re.search(r"(?<!\$)\$\(", word) for word in command)
    return [word.replace("$$(", "$(") for word in command]


ELASTIC = ("--elastic", "min=8")


@pytest.mark.parametrize("elastic", [(), ELASTIC])
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_what_kubernetes_takes(written: Any, version: str, elastic: tuple[str, ...]) -> None:
    for document in written("--nodes", "4", "--restarts", "3", *elastic):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_validator_sees_mistakes(written: Any) -> None:
    *_, job = written("--nodes", "4")
    job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_pods_find_one_another_and_the_config_travels_with_them(written: Any, tmp_path: Path) -> None:
    config_map, service, job = written("--nodes", "4", "--data.text", 'it\'s; "here": $(x)')
    name = "my-run"
    assert {document["metadata"]["name"] for document in (config_map, service, job)} == {name}
    assert config_map["data"]["run.toml"] == (tmp_path / "My Run.toml").read_text()
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (4, 4, "Indexed")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == name
    [container] = pod["containers"]
    env = {item["name"]: item["value"] for item in container["env"]}
    # Kubernetes adds the index; the host of pod 0 is NAME-0 in the subdomain.
    assert launchers.find(env | {"JOB_COMPLETION_INDEX": "2"}) == Place(
        2, 4, f"{name}-0.{name}:8476", hosts=4, pods=True
    )
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == folders.keys()
    program, action, path, *words = as_run(container["command"])
    assert (program, action, path) == ("meshkit", "train", f"{folders['config']}/run.toml")
    assert f"--run_dir={folders['runs']}/one" in words
    assert '--data.text=["it\'s; \\"here\\": $(x)"]' in words


@pytest.mark.parametrize(
    ("conditions", "code", "action"),
    [
        (["DisruptionTarget"], 143, "Ignore"),
        ([], SAVED, "Ignore"),  # the other pods of a run with a drained one
        ([], LATE, "Ignore"),  # who waits for its replacement
        ([], RESTART, "Count"),
        ([], 137, "Count"),
        ([], 1, "FailJob"),
        ([], 2, "FailJob"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--restarts", "3", *ELASTIC]])
def test_what_the_end_of_a_pod_means(
    written: Any, more: list[str], conditions: list[str], code: int, action: str
) -> None:
    *_, job = written("--nodes", "4", *more)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert {"name": launchers.PREEMPTED_EXIT, "value": str(SAVED)} in container["env"]

    def matches(rule: dict[str, Any]) -> bool:
        if "onExitCodes" in rule:
            assert rule["onExitCodes"]["operator"] == "In"
            return code in rule["onExitCodes"]["values"]
        return any(pattern["type"] in conditions for pattern in rule["onPodConditions"])

    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert next((rule["action"] for rule in rules if matches(rule)), "Count") == action


def test_the_pods_command_is_read_as_it_was_meant(written: Any) -> None:
    *_, job = written("--nodes", "4", "--data.text", 'it\'s; "here": $(x)', "--model.rope_scaling", "{factor = 2.0}")
    [container] = job["spec"]["template"]["spec"]["containers"]
    _, overrides = split_overrides(as_run(container["command"])[2:])
    read = load({}, overrides)
    assert read.data.text == ['it\'s; "here": $(x)']
    assert read.model.rope_scaling is not None
    assert read.model.rope_scaling.factor == 2.0


def test_pods_of_an_elastic_job_are_supervisors_that_find_one_another(written: Any) -> None:
    _, service, job = written("--nodes", "4", "--restarts", "3", "--data.text", "$(x)", *ELASTIC)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 1}]}, "the pod of a lost node never ends"
    [container] = pod["containers"]
    command = as_run(container["command"])
    assert command[:3] == ["meshkit", "launch", "pod"]
    options, overrides = split_overrides(command[2:])
    parsed = _parser().parse_args(["launch", *options])
    assert (parsed.nodes, parsed.devices_per_node, parsed.least, parsed.restarts) == (4, 8, 1, 3)
    assert parsed.hosts.format(2) == "my-run-2.my-run:8476"
    assert overrides == {"data.text": ["$(x)"], "run_dir": "/runs/one"}
    ports = [port["port"] for port in service["spec"]["ports"]]
    assert ports == [port["containerPort"] for port in container["ports"]] == [8476, 8477]
    env = {item["name"] for item in container["env"]}
    assert not env & set(launchers.BY_HAND), "who takes part, the supervisors agree on"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "Big_Run"], "--name Big_Run: Kubernetes takes small letters, digits"),
        (["--name", "a" * 62], "at most 61"),
        (["--elastic", "min=8"], "--elastic needs --restarts N"),
        (["--elastic", "min=8", "--restarts", "1", "--nodes", "2"], "take --nodes 3 or more, or leave --elastic out"),
        (["--elastic", "min=24", "--restarts", "1"], "no mesh of 24 or more of them is legal: choose min=16"),
        (["--elastic", "min=32", "--restarts", "1"], "with a node lost 24 devices are left"),
        (["--mesh.tensor", "5"], "there are 32"),
        (["--restarts", "-2"], "--restarts -2: it is at least 0"),
        (["--grace", "-1"], "--grace -1: it is at least 0"),
        (["--claim", "Bad Claim"], "--claim 'Bad Claim': the name of a PersistentVolumeClaim has small letters"),
        (["--image", ""], "--image '': write one as registry.example/meshkit:1"),
    ],
)
def test_mistakes_say_what_to_mend(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[data]\nbatch = 512\n")
    command = ["launch", "k8s", str(config), "--run_dir", str(tmp_path / "run"), "--image", "i", "--claim", "c"]
    assert main([*command, "--nodes", "4", "--gpus-per-node", "8", *words]) == 1
    assert said in capsys.readouterr().err


def test_xla_knows_every_flag() -> None:
    """It refuses to start with one that it does not know."""
    env = {name: value for name, (value, _) in flags.environment().items()}
    program = "import jax; jax.devices()"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | env, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    wrong = env | {"XLA_FLAGS": env["XLA_FLAGS"] + " --xla_gpu_no_such_flag=1"}
    assert subprocess.run([sys.executable, "-c", program], env=os.environ | wrong, capture_output=True).returncode
    assert all(setting.reason for setting in flags.SETTINGS)
