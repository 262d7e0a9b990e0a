"""Two real processes of four simulated devices each train as one process of eight does."""

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshkit
from meshkit.cli import main
from meshkit.distributed import agreement, launchers, processes, rendezvous
from meshkit.distributed.launchers import Place
from meshkit.errors import LATE, MeshkitError

PROGRAM = "import sys; from meshkit.cli import main; sys.exit(main())"
SECONDS = 120
CONFIG = """
steps = 5
precision = "float32"
log_every = 1
evaluate_every = 3
mesh = {{ data = 2, tensor = 2, pipe = 2 }}
pipeline = {{ microbatches = 2 }}
model = {{ layers = 4, width = 16, heads = 2, kv_heads = 2, mlp_width = 32 }}
optimizer = {{ learning_rate = 1e-2 }}

[data]
text = ["{text}"]
sequence = 16
batch = 8
"""


@dataclasses.dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose text no process has prepared yet."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(300)))
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(text=text))
    return path


def two_processes(folder: Path, *words: str) -> list[Done]:
    """`meshkit WORDS` as process 0 and 1 of two, both with `folder` as the working directory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = os.environ | {
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=shared | {"JAX_PROCESS_ID": str(number)},
        )
        for number in range(2)
    ]
    try:
        texts = [child.communicate(timeout=SECONDS) for child in children]
    finally:
        for child in children:
            child.kill()
    return [Done(child.returncode, *text) for child, text in zip(children, texts, strict=True)]


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 1, 4)])
def test_two_processes_train_as_one(shape: tuple[int, int, int], config: Path, tmp_path: Path) -> None:
    mesh = dict(zip(("data", "tensor", "pipe"), shape, strict=True))
    words = [word for axis, size in mesh.items() for word in (f"--mesh.{axis}", str(size))]
    first, second = two_processes(tmp_path, "train", str(config), *words)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    alone = meshkit.train(config, mesh=mesh, run_dir=str(tmp_path / "alone"))

    records = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [set(record) for record in records] == [set(record) for record in alone.history]
    for record, expected in zip(records, alone.history, strict=True):
        for name in set(record) - {"tokens_per_second"}:
            np.testing.assert_allclose(record[name], expected[name], rtol=1e-6, err_msg=name)

    # One screen and one folder: those of process 0.
    assert "step 5/5" in first.out
    # Gloo prints from threads of its own, at times two lines in one.
    assert [
        line for line in second.out.splitlines() if line and "peer ranks" not in line and "[Gloo]" not in line
    ] == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]
    assert len(list((tmp_path / "runs" / "run").glob("events.out.tfevents.*"))) == 1


def test_a_folder_that_cannot_be_made_stops_all(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, second = two_processes(tmp_path, "train", str(config), "--run_dir", "file/run")
    assert (first.code, second.code) == (1, 1), first.err + second.err
    assert "run_dir = 'file/run': cannot be written (Not a directory)" in first.err
    assert "run_dir = 'file/run': cannot be written (see the message of process 0)" in second.err


# --- the environment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"JAX_NUM_PROCESSES": "2"},
            "JAX_NUM_PROCESSES is set in the environment and JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID are not",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_PROCESS_ID": "0"},
            "JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID are set in the environment and JAX_NUM_PROCESSES is not",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            "JAX_NUM_PROCESSES = '2' and JAX_PROCESS_ID = '2': .* numbers them from 0",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
            "JAX_NUM_PROCESSES = 'two'",
        ),
        (
            {
                "JAX_COORDINATOR_ADDRESS": "here:1",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": "0",
                "JAX_LOCAL_DEVICE_IDS": "a,b",
            },
            "JAX_LOCAL_DEVICE_IDS = 'a,b': it is the numbers of local devices, as 0,1",
        ),
        # The shell of a batch script, before `srun`.
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"},
            "SLURM_STEP_NODELIST, .* not, as `srun` would: start the run by srun, or unset SLURM_PROCID",
        ),
    ],
)
def test_variables_that_do_not_go_together(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MeshkitError, match=message):
        processes.start()


SLURM = {
    "SLURM_JOB_ID": "70000",
    "SLURM_NTASKS": "12",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[07,09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x3)",
}
ONE_A_NODE = SLURM | {
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "a,b[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
BY_HAND = {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, None),
        ({"JOB_COMPLETION_INDEX": "3"}, None),
        (SLURM | {"SLURM_NTASKS": "1"}, None),
        (BY_HAND | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
        (SLURM, Place(9, 12, "gpu07:61808", hosts=3, devices=(1,))),
        (SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, Place(9, 12, "gpu07:61808", hosts=3, devices=(1,))),
        # --gpus-per-task=1 shows a process its own GPU alone, as number 0.
        (SLURM | {"CUDA_VISIBLE_DEVICES": "1"}, Place(9, 12, "gpu07:61808", hosts=3)),
        (SLURM | {"SLURM_NODEID": "0", "JAX_COORDINATOR_PORT": "99"}, Place(9, 12, "gpu07:99", 3, True, (1,))),
        (ONE_A_NODE, Place(2, 3, "a:61808", hosts=3)),
        (OPEN_MPI, Place(5, 8, "10.96.0.1:62624", hosts=2, devices=(1,))),
        # What is set by hand counts, whatever else is set around it.
        (SLURM | BY_HAND, Place(1, 2, "here:1")),
        # An Indexed Job numbers its pods.
        (
            {"JAX_COORDINATOR_ADDRESS": "run-0.run:1", "JAX_NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "2"},
            Place(2, 4, "run-0.run:1", hosts=4, pods=True),
        ),
    ],
)
def test_which_process_this_is(variables: dict[str, str], place: Place | None) -> None:
    assert launchers.find(variables) == place


def test_an_open_mpi_that_does_not_say_where() -> None:
    variables = {name: value for name, value in OPEN_MPI.items() if "hnp" not in name}
    with pytest.raises(MeshkitError, match="-x JAX_COORDINATOR_ADDRESS=HOST:PORT"):
        launchers.find(variables)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            Place(1, 2, "127.0.0.1:1234", hosts=2),
            "is .* itself \\(loopback\\), and the run has 2 hosts: set it to HOST:PORT",
        ),
        (Place(0, 2, "localhost:1234", hosts=2, same_host=True), "loopback"),
        (Place(1, 2, "nowhere.invalid:1234"), "cannot find 'nowhere.invalid' .*: set it to HOST:PORT"),
        (Place(0, 2, "node1"), "it is the host and the port of process 0, as node1:1234"),
        (Place(0, 2, "node1:port"), "it is the host and the port of process 0, as node1:1234"),
    ],
)
def test_an_address_that_others_cannot_reach_is_refused(place: Place, message: str) -> None:
    with pytest.raises(MeshkitError, match=message):
        rendezvous.check(place)


def test_a_process_0_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "JOIN_SECONDS", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(MeshkitError, match="nothing answers at .*each host means itself.*: start process 0"):
            rendezvous.check(Place(1, 2, address))
        free.listen()
        rendezvous.check(Place(1, 2, address))
        with pytest.raises(MeshkitError, match="cannot be opened .*: choose another"):
            rendezvous.check(Place(0, 2, address))


LATER = Place(1, 2, "run-0.run:1234", hosts=2, pods=True)
"""A pod that is there before pod 0 is."""


def test_the_name_of_a_pod_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        answers = iter([socket.gaierror(socket.EAI_NONAME, "no such name"), [(0, 0, 0, "", ("10.0.0.1", port))]])

        def look_up(*_: object, **__: object) -> object:
            answer = next(answers)
            if isinstance(answer, socket.gaierror):
                raise answer
            return answer

        waited = []
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        monkeypatch.setattr(
            rendezvous, "_wait_for", lambda place, host, port, loopback: waited.append((host, loopback))
        )
        rendezvous.check(LATER)
    assert waited == [("run-0.run", False)]


@pytest.mark.parametrize(
    ("name", "value"), [("LOCAL_SIZE", ""), ("RANK", "8"), ("RANK", "x"), ("LOCAL_RANK", "4"), ("SIZE", "0")]
)
def test_numbers_that_open_mpi_does_not_give_are_refused(name: str, value: str) -> None:
    env = OPEN_MPI | {f"OMPI_COMM_WORLD_{name}": value}
    with pytest.raises(MeshkitError, match=f"OMPI_COMM_WORLD_{name} = '{value}'.*: not the numbers of `mpirun`"):
        launchers.find(env)


@pytest.mark.parametrize("code", ["abc", "300", "-1", "7.0"])
def test_an_exit_code_that_cannot_be_is_refused_at_the_start(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHKIT_PREEMPTED_EXIT", code)
    with pytest.raises(MeshkitError, match=f"MESHKIT_PREEMPTED_EXIT = '{code}': it is an exit code, from 0 to 255"):
        processes.start()


@pytest.mark.parametrize("place", [LATER, Place(1, 2, "127.0.0.1:1")])
def test_who_does_not_come_may_come_to_another_start(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(rendezvous, "JOIN_SECONDS", 0)
    given = dict(zip(launchers.BY_HAND, (place.address, "2", "1"), strict=True))
    for name, value in (given | ({"JOB_COMPLETION_INDEX": "1"} if place.pods else {})).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "run.toml").write_text("")
    assert main(["train", str(tmp_path / "run.toml")]) == LATE
    assert "after 0 s" in capsys.readouterr().err


def test_process_0_does_not_wait_for_ever() -> None:
    """Nor does JAX abort it, which would be a crash to a supervisor."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = "from meshkit.distributed import processes, rendezvous; rendezvous.JOIN_SECONDS = 1; processes.start()"
    env = os.environ | dict(zip(launchers.BY_HAND, (address, "2", "0"), strict=True))
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == LATE, done.stderr
    assert f"the others have not all joined at {address} after 1 s: start them" in done.stderr


def test_what_is_waited_for_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    said = threading.Event()
    monkeypatch.setattr(rendezvous, "NOTICE_SECONDS", 0)
    show = rendezvous._say
    monkeypatch.setattr(rendezvous, "_say", lambda text: (show(text), said.set()))
    for what, place, words in [
        (
            "the others",
            Place(0, 2, "127.0.0.1:1234"),
            "process 0 of 2 on .* waits for the others at .* itself \\(loopback\\): if",
        ),
        (
            "process 0",
            Place(1, 2, "127.0.0.1:1234"),
            "process 1 of 2 on .* waits for process 0 at .* itself \\(loopback\\): if",
        ),
        (
            "process 0",
            Place(1, 2, "10.0.0.1:1234"),
            "waits for process 0 at JAX_COORDINATOR_ADDRESS = '10.0.0.1:1234'$",
        ),
    ]:
        said.clear()
        with rendezvous.saying_what_is_waited_for(what, place):
            assert said.wait(10)
        assert re.search(words, capsys.readouterr().err.strip())


def test_process_0_says_that_its_address_is_another_hosts(capsys: Any) -> None:
    with socket.create_server(("", 0)) as busy:
        port = busy.getsockname()[1]
    rendezvous.check(Place(0, 2, f"127.0.0.1:{port}"))
    assert capsys.readouterr().err == ""
    rendezvous.check(Place(0, 2, f"192.0.2.1:{port}"))  # of documentation: nobody's
    assert "'192.0.2.1:" in (said := capsys.readouterr().err)
    assert "is no address of" in said


def test_it_is_joined_with_a_short_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *words, **arguments: calls.append((words, arguments)))
    monkeypatch.setattr(rendezvous, "check", lambda place: None)
    for name, value in BY_HAND.items():
        monkeypatch.setenv(name, value)
    processes.start()
    [(words, arguments)] = calls
    assert words == ("here:1", 2, 1, ())
    assert 10 <= arguments["heartbeat_timeout_seconds"] <= 30


class Store(dict[str, str]):
    """The store that processes share, in which the others have said what they have."""

    def key_value_set(self, key: str, value: str) -> None:
        self[key] = value

    def blocking_key_value_get(self, key: str, wait: int) -> str:
        return self.get(key, json.dumps(["b", {"the training data": "200 tokens, CRC-32 2"}]))


def test_processes_that_read_other_data_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(agreement, "store", lambda: store)
    monkeypatch.setattr(socket, "gethostname", lambda: "a")
    agreed = "the training data is 100 tokens, CRC-32 1 in process 0 \\(host a\\) and 200 tokens, CRC-32 2 in process 1"
    with pytest.raises(MeshkitError, match=f"the processes do not agree: {agreed}"):
        agreement.on_data("100 tokens, CRC-32 1")
    agreement.on_data("200 tokens, CRC-32 2")


def test_the_data_are_compared_before_anything_is_compiled(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(facts: agreement.Facts) -> None:
        if "CRC-32" in facts.get("the training data", ""):
            raise MeshkitError("compared")

    monkeypatch.setattr(agreement, "_compare", compare)
    monkeypatch.setattr("meshkit.assemble.train_step", lambda *_: pytest.fail("too late"))
    with pytest.raises(MeshkitError, match="compared"):
        meshkit.train(config, run_dir=str(tmp_path / "alone"))


def test_differences_name_processes_and_hosts() -> None:
    usual = {"jax": "1", "mesh": "m", "seed": "0"}
    said = [("a", usual), ("a", usual), ("b", usual), ("b", usual | {"jax": "2"})]
    assert agreement.differences(said) == ["jax is 1 in processes 0, 1, 2 (hosts a, b) and 2 in process 3 (host b)"]
    assert agreement.differences(said[:3]) == []
    many = [(f"n{number}", usual | {"seed": str(int(number == 5))}) for number in range(40)]
    [clause] = agreement.differences(many)
    assert clause.endswith("31 more (hosts n0, n1, n2, n3, n4, n6, n7, n8 and 31 more) and 1 in process 5 (host n5)")
