"""Which of how many processes this one is, as its launcher says in the environment. No JAX."""

import dataclasses
import ipaddress
import os
import re
import socket
import time
from collections.abc import Mapping

from meshkit.errors import MeshkitError

ADDRESS, COUNT, NUMBER = BY_HAND = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""host:port of process 0; how many processes; the number of this one. They go before what a launcher set."""

INDEX = "JOB_COMPLETION_INDEX"
"""The number of a pod, set by Kubernetes in an Indexed Job; it stands in for JAX_PROCESS_ID."""

PREEMPTED_EXIT = "MESHKIT_PREEMPTED_EXIT"
"""The exit code of a run that saved and ended on a SIGTERM before its last step. A supervisor sets it to tell such a
run from one that is complete; by itself it is 0."""

PORTS = range(61440, 65536)
"""Of process 0 under SLURM and Open MPI: by the job's number, so that jobs that share a host do not meet."""

JOIN_SECONDS = 300
"""Processes that are not there after this are not waited for any longer."""


@dataclasses.dataclass(frozen=True)
class Place:
    """number: of this process among `count`. address: host:port of process 0.

    hosts: how many there are; None: not known. same_host: whether process 0 surely shares this one.
    devices: the only local devices to take, by number; empty: all that this process sees.
    """

    number: int
    count: int
    address: str
    hosts: int | None = None
    same_host: bool = False
    devices: tuple[int, ...] = ()


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
    chosen = env.get("JAX_LOCAL_DEVICE_IDS")
    return dataclasses.replace(place, devices=tuple(map(int, chosen.split(",")))) if chosen else place


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
    pods = int(count) if env.get(INDEX) else None  # each pod has an address of its own
    return Place(int(number), int(count), address, hosts=pods, same_host=number == "0")


def _slurm(env: Mapping[str, str]) -> Place | None:
    """From the variables of a step of `srun`."""
    if env.get("SLURM_NTASKS", "1") == "1":
        return None
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
    count, locals_ = int(env["OMPI_COMM_WORLD_SIZE"]), int(env["OMPI_COMM_WORLD_LOCAL_SIZE"])
    return Place(
        int(env["OMPI_COMM_WORLD_RANK"]),
        count,
        f"{host[1]}:{_port(env, int(job) >> 12)}",
        hosts=-(-count // locals_),
        devices=_own_device(env, int(env["OMPI_COMM_WORLD_LOCAL_RANK"]), locals_),
    )


def _port(env: Mapping[str, str], job: int) -> int:
    return int(env.get("JAX_COORDINATOR_PORT") or PORTS[job % len(PORTS)])


def _own_device(env: Mapping[str, str], local: int, locals_: int) -> tuple[int, ...]:
    """Of several processes on a host each takes one GPU, unless the launcher shows each but one."""
    shown = env.get("CUDA_VISIBLE_DEVICES")
    return () if locals_ == 1 or (shown is not None and "," not in shown) else (local,)


# --- the way to process 0 -----------------------------------------------------------------------


def check(place: Place) -> None:
    """Raises MeshkitError, with the fix, when the other processes cannot reach process 0 at its address."""
    host, port = _split(place.address)
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except socket.gaierror as error:
        raise MeshkitError(
            f"{ADDRESS} = {place.address!r}: {socket.gethostname()} cannot find {host!r} ({error.strerror}): {FIX}"
        ) from None
    own = all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
    # On its own host the name of process 0 may well mean loopback, as in Debian's /etc/hosts.
    if own and (place.hosts or 1) > 1 and (_is_loopback(host) or not place.same_host):
        raise MeshkitError(
            f"{ADDRESS} = {place.address!r} is {socket.gethostname()} itself (loopback), and the run has {place.hosts} "
            f"hosts: {FIX}"
        )
    if place.number == 0:
        _check_free(port)
    else:
        _wait_for(place, host, port)


FIX = "set it to HOST:PORT, with a name or IP address of the host of process 0 that the other hosts reach"


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise MeshkitError(f"{ADDRESS} = {address!r}: it is the host and the port of process 0, as node1:1234")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_free(port: int) -> None:
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            mine.bind(("", port))
        except OSError as error:
            raise MeshkitError(
                f"port {port} of {ADDRESS} cannot be opened ({error.strerror}): choose another"
            ) from None


def _wait_for(place: Place, host: str, port: int) -> None:
    """Until something listens there: JAX itself would say less, and later."""
    end = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            socket.create_connection((host, port), timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                why = " (loopback: each host means itself)" if _is_loopback(host) else ""
                raise MeshkitError(
                    f"process {place.number} on {socket.gethostname()}: nothing answers at {ADDRESS} = "
                    f"{place.address!r}{why} after {JOIN_SECONDS} s ({error.strerror or error}): start process 0, "
                    f"open the port between the hosts, or {FIX}"
                ) from None
        time.sleep(0.2)
