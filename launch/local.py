"""`meshkit launch local`: real processes on this machine, each with simulated devices, that talk over Gloo. No JAX."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshkit.config import RunConfig
from meshkit.distributed.launchers import ADDRESS, COUNT, NUMBER, PREEMPTED_EXIT, preempted_exit
from meshkit.errors import SAVED, MeshkitError, counted
from meshkit.launch import elastic
from meshkit.launch.cluster import check_restarts
from meshkit.launch.supervisor import Ended, Meaning, Supervisor, end_with_parent, say, spell
from meshkit.mesh import resolve
from meshkit.overrides import words

SHOWN_LINES = 15  # of the log of a process that ended badly


@dataclasses.dataclass(frozen=True)
class Job:
    """What to start: `processes` times `meshkit train CONFIG` with `devices` simulated devices each (None: real ones).

    config: the resolved config, for the supervisor's own use.
    """

    path: str
    config: RunConfig
    overrides: Mapping[str, Any]
    processes: int
    devices: int | None
    json: bool = False

    @property
    def logs(self) -> Path:
        """The folder of what processes other than 0 print."""
        return Path(self.config.run_dir) / "logs"

    def on(self, processes: int, config: RunConfig) -> "Job":
        """The same job on other devices."""
        overrides = {**self.overrides, **elastic.changes(config)}
        return dataclasses.replace(self, processes=processes, config=config, overrides=overrides)


def job(path: str, config: RunConfig, overrides: Mapping[str, Any], processes: int, devices: int | None) -> Job:
    """The job as the command line asks for it. Raises MeshkitError for numbers that do not go together."""
    if devices is None and (config.devices or processes > 1):
        devices = _share(config, processes)
    if devices is None:
        return Job(path, config, overrides, processes, None)
    config = config.model_copy(update={"mesh": resolve(config.mesh, processes * devices)})
    return Job(path, config, {**overrides, "devices": devices}, processes, devices)


def _share(config: RunConfig, processes: int) -> int:
    """Devices of one process, when all together are those that the config speaks of."""
    total = config.devices or (config.mesh.devices if -1 not in config.mesh.sizes.values() else processes)
    if total % processes:
        raise MeshkitError(
            f"--processes {processes}: {total} devices do not split evenly over them: choose a divisor of {total}, or "
            "pass --devices-per-process"
        )
    return total // processes


def run(job: Job, restarts: int, least: int | None, grace: float) -> int:
    """Start `job`, again up to `restarts` times, not counting when it was told to end; its exit code.

    least: of devices, to go on with fewer; None: never.
    """
    if least is not None and job.devices is None:
        raise MeshkitError("--elastic: one process with all devices of the machine has none to lose: leave it out")
    if least is not None and job.devices is not None and least > job.processes * job.devices:
        raise MeshkitError(
            f"--elastic min={least}: {counted(job.processes, 'process')} of {job.devices} have "
            f"{job.processes * job.devices} devices: choose from 1 to {job.processes * job.devices}"
        )
    check_restarts(job.config, restarts, least)
    with Supervisor(grace, say) as supervisor:
        spent = 0
        while True:
            begun = time.monotonic()
            with _started(job) as processes:
                ended = supervisor.watch(processes)
            if supervisor.stopped is not None:
                return _code_when_stopped(ended, supervisor.stopped)
            if ended.meaning is Meaning.DONE:
                return 0
            _show(job, ended)
            code = ended.code
            if ended.meaning is Meaning.MISTAKE:
                say("no restart: it would fail again")
                return code
            if ended.meaning is Meaning.SAVED and not restarts:
                return preempted_exit()
            if ended.meaning is Meaning.SAVED:
                say("it was told to end, and saved: it goes on, which uses up no restart")
                continue
            if spent == restarts:
                say(
                    f"no restart is left of {restarts} (--restarts)"
                    if restarts
                    else "no restart: --restarts N allows it"
                )
                return code if code > 0 else 128 - code
            if least is not None:
                job = _smaller(job, ended, least)
            spent += 1
            say(
                f"restart {spent} of {restarts} after {time.monotonic() - begun:.0f} s, from the last "
                f"checkpoint: {counted(job.processes, 'process')}, mesh {job.config.mesh}"
            )


def _code_when_stopped(ended: Ended, number: int) -> int:
    """0 when all were done, or saved and ended; then what a supervisor of this one asks for, if there is any."""
    if all(code in (0, SAVED) for code in ended.codes):
        return preempted_exit() if any(ended.codes) else 0
    return 128 + number


def _smaller(job: Job, ended: Ended, least: int) -> Job:
    """The job without the processes that were lost. Raises MeshkitError when too few devices are left."""
    assert job.devices is not None
    left = job.processes - ended.lost
    counts = [n * job.devices for n in range(1, left + 1) if n * job.devices >= least]
    fitted = elastic.fit(job.config, counts)
    if fitted is None:
        raise MeshkitError(
            f"{counted(left * job.devices, 'device')} are left and --elastic min={least}: no mesh of {least} or more "
            f"of them is legal for this config; the last checkpoint is in {job.config.run_dir}"
        )
    return job.on(fitted.mesh.devices // job.devices, fitted)


# --- processes ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _started(job: Job) -> Iterator[Sequence[subprocess.Popen[Any]]]:
    """The processes of one attempt. They do not outlive this."""
    address = f"127.0.0.1:{_free_port()}"
    shared = os.environ | {ADDRESS: address, COUNT: str(job.processes), PREEMPTED_EXIT: str(SAVED)}
    command = [sys.executable, "-m", "meshkit", "train", job.path, *words(job.overrides), *["--json"] * job.json]
    processes: list[subprocess.Popen[Any]] = []
    with contextlib.ExitStack() as logs:
        try:
            for number in range(job.processes):
                # Process 0 has the screen. A session of its own: Ctrl-C comes to the supervisor, and it alone.
                log = logs.enter_context(_log(job, number)) if number else None
                processes.append(
                    subprocess.Popen(
                        command,
                        env=shared | {NUMBER: str(number)},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        preexec_fn=end_with_parent,
                    )
                )
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _log_path(job: Job, number: int) -> Path:
    return job.logs / f"process-{number}.log"


def _log(job: Job, number: int) -> Any:
    path = _log_path(job, number)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")  # another run may be at work in the folder, and earlier attempts are worth reading
    except OSError as error:
        raise MeshkitError(f"run_dir = {job.config.run_dir!r}: no log can be written ({error.strerror})") from None


def _show(job: Job, ended: Ended) -> None:
    """Say how the others ended, and if the screen was not that of the first, the end of its log."""
    number = ended.first
    if len(ended.codes) > 1:
        say(f"the others: {_others(ended)}")
    if not number:
        return
    with contextlib.suppress(OSError):
        lines = _log_path(job, number).read_text(errors="replace").splitlines()
        for line in lines[-SHOWN_LINES:]:
            print(f"[{number}] {line}", file=sys.stderr)


def _others(ended: Ended) -> str:
    spelled = [spell(code).removeprefix("ended ") for number, code in enumerate(ended.codes) if number != ended.first]
    return ", ".join(f"{spelled.count(way)} {way}" for way in dict.fromkeys(spelled))
