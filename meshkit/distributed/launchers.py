"""Which of how many processes this one is, as its launcher says in the environment. No JAX."""

import dataclasses
import os
import re
import socket
from collections.abc import Mapping

from meshkit.errors import MeshkitError

ADDRESS, COUNT, NUMBER = BY_HAND = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""host:port of process 0; how many processes; the number of this one. They go before what a launcher set."""

DEVICES = "JAX_LOCAL_DEVICE_IDS"
"""The local devices that this process takes, as 0,1; it goes before what a launcher set."""

INDEX = "JOB_COMPLETION_INDEX"
"""The number of a pod, set by Kubernetes in an Indexed Job; it stands in for JAX_PROCESS_ID."""

PREEMPTED_EXIT = "MESHKIT_PREEMPTED_EXIT"
"""The exit code of a run that saved and ended on a SIGTERM before its last step. A supervisor sets it (to
`errors.SAVED`) to know that the run shall be started again; by itself it is 0."""

PORTS = range(61440, 65536)
"""Of process 0 under SLURM and Open MPI: by the job's number, so that jobs that share a host do not meet."""

STEP = (
    *("SLURM_JOB_ID", "SLURM_NODEID", "SLURM_LOCALID"),
    *("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE"),
)
"""What a step of `srun` sets besides SLURM_PROCID and SLURM_NTASKS, which the shell of a batch script has too."""


@dataclasses.dataclass(frozen=True)
class Place:
    """number: of this process among `count`. address: host:port of process 0.

    hosts: how many there are; None: not known. same_host: whether process 0 surely shares this one.
    devices: the only local devices to take, by number; empty: all that this process sees.
    pods: whether the hosts are pods, which get their names as they start.
    """

    number: int
    count: int
    address: str
    hosts: int | None = None
    same_host: bool = False
    devices: tuple[int, ...] = ()
    pods: bool = False

    def __str__(self) -> str:
        return f"process {self.number} of {self.count} on {socket.gethostname()}"


def preempted_exit(env: Mapping[str, str] = os.environ) -> int:
    """The number in PREEMPTED_EXIT; 0 when it is not set. MeshkitError for one that no process can exit with."""
    code = env.get(PREEMPTED_EXIT) or "0"
    if not (re.fullmatch(r"[0-9]{1,3}", code) and int(code) <= 255):
        raise MeshkitError(f"{PREEMPTED_EXIT} = {code!r}: it is an exit code, from 0 to 255")
    return int(code)


def find(env: Mapping[str, str] = os.environ) -> Place | None:
    """The place of this process; None: it is alone.

    Raises MeshkitError for variables that do not go together.
    """
    if any(env.get(name) for name in BY_HAND):
        place: Place | None = _by_hand(env)
    elif "SLURM_PROCID" in env:
        place = _slurm(env)
    elif "OMPI_COMM_WORLD_RANK" in env:
        place = _open_mpi(env)
    else:
        return None
    if place is None or place.count == 1:
        return None
    chosen = env.get(DEVICES)
    return dataclasses.replace(place, devices=_numbers(chosen)) if chosen else place


def _numbers(chosen: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", chosen):
        raise MeshkitError(f"{DEVICES} = {chosen!r}: it is the numbers of local devices, as 0,1")
    return tuple(map(int, chosen.split(",")))


def _by_hand(env: Mapping[str, str]) -> Place:
    values = {name: env.get(name, "") for name in BY_HAND}
    values[NUMBER] = values[NUMBER] or env.get(INDEX, "")
    given, missing = ([name for name in BY_HAND if bool(values[name]) is there] for there in (True, False))
    if missing:
        raise MeshkitError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set in the environment and "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not: set all three, or none to run alone"
        )
    address, count, number = values.values()
    if not (count.isdigit() and number.isdigit() and int(number) < int(count)):
        raise MeshkitError(
            f"JAX_NUM_PROCESSES = {count!r} and JAX_PROCESS_ID = {number!r}: the first is how many processes there "
            "are, the second numbers them from 0"
        )
    pods = bool(env.get(INDEX))
    hosts = int(count) if pods else None  # each pod has an address of its own
    return Place(int(number), int(count), address, hosts, same_host=number == "0", pods=pods)


def _slurm(env: Mapping[str, str]) -> Place | None:
    """From the variables of a step of `srun`."""
    if env.get("SLURM_NTASKS", "1") == "1":
        return None
    missing = [name for name in STEP if name not in env]
    if missing:
        raise MeshkitError(
            f"SLURM_NTASKS = {env['SLURM_NTASKS']} and SLURM_PROCID = {env['SLURM_PROCID']} are set in the environment "
            f"and {', '.join(missing)} not, as `srun` would: start the run by srun, or unset SLURM_PROCID to run alone"
        )
    first = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", env["SLURM_STEP_NODELIST"])  # of n[01-04,07],m1: n01
    assert first is not None, "SLURM names at least one node"
    here = int(env["SLURM_NODEID"])
    tasks = _tasks_of_nodes(env["SLURM_STEP_TASKS_PER_NODE"])[here]
    return Place(
        int(env["SLURM_PROCID"]),
        int(env["SLURM_NTASKS"]),
        f"{first[1]}{first[2] or ''}:{_port(env, int(env['SLURM_JOB_ID']))}",
        hosts=int(env["SLURM_STEP_NUM_NODES"]),
        same_host=here == 0,
        devices=_own_device(env, int(env["SLURM_LOCALID"]), tasks),
    )


def _tasks_of_nodes(text: str) -> list[int]:
    """SLURM's "2(x3),1" is [2, 2, 2, 1]."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in groups for _ in range(int(times or 1))]


def _open_mpi(env: Mapping[str, str]) -> Place:
    """From the variables of `mpirun`. Up to version 4 it says where it runs itself: on the host of process 0."""
    job, _, where = env.get("OMPI_MCA_orte_hnp_uri", "").partition(".")
    host = re.search(r"tcp6?://\[?([^,\]]+?)[,\]:]", where)
    if host is None:
        raise MeshkitError(
            "this Open MPI does not say where process 0 is: pass mpirun -x JAX_COORDINATOR_ADDRESS=HOST:PORT, the "
            "first host of the job and a free port, and -x JAX_NUM_PROCESSES; or start the run by `meshkit launch`"
        )
    values = {name: env.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")}
    numbers = [int(value) if value.isdecimal() else -1 for value in (*values.values(), job)]
    count, rank, locals_, local, job_number = numbers
    if not (0 <= rank < count and 0 <= local < locals_ <= count and job_number >= 0):
        said = ", ".join(f"OMPI_COMM_WORLD_{name} = {value!r}" for name, value in values.items())
        raise MeshkitError(
            f"{said}: not the numbers of `mpirun`, which sets all four, each rank less than its size: start the run by "
            "mpirun, or unset OMPI_COMM_WORLD_RANK to run alone"
        )
    return Place(
        rank,
        count,
        f"{host[1]}:{_port(env, job_number >> 12)}",
        hosts=-(-count // locals_),
        devices=_own_device(env, local, locals_),
    )


def _port(env: Mapping[str, str], job: int) -> int:
    return int(env.get("JAX_COORDINATOR_PORT") or PORTS[job % len(PORTS)])


def _own_device(env: Mapping[str, str], local: int, locals_: int) -> tuple[int, ...]:
    """Of several processes on a host each takes one GPU, unless the launcher shows each but one."""
    shown = env.get("CUDA_VISIBLE_DEVICES")
    return () if locals_ == 1 or (shown is not None and "," not in shown) else (local,)
