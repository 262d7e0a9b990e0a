"""A real SLURM of two nodes on this machine: its daemons run as children, in a folder of their own.

Needs Debian's slurm-wlm and munge, and root, as SLURM starts jobs in the name of others. The names of the nodes stand
in /etc/hosts as long as it runs. See https://slurm.schedmd.com/programmer_guide.html, "multiple slurmd support".
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NODES = ("meshkit-n1", "meshkit-n2")
MISSING = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]

CONF = """
ClusterName=meshkit
SlurmctldHost={host}
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
JobRequeue=1
KillWait=30
MinJobAge=600
SchedulerParameters=sched_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=cancel Nodes={names} PreemptMode=CANCEL
PartitionName=cancel-in-8-s Nodes={names} PreemptMode=CANCEL GraceTime=8
PartitionName=requeue Nodes={names} PreemptMode=REQUEUE
PartitionName=requeue-in-8-s Nodes={names} PreemptMode=REQUEUE GraceTime=8
"""
"""Jobs in "all" take the nodes of those in the partitions below it, in the way of each."""


class Slurm:
    """`folder` holds configuration, state and logs. `env`: for its commands and for whoever calls sbatch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: str) -> str:
        """What a command of SLURM prints."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}{self.logs()}"
        return done.stdout

    def state(self, job: str) -> str:
        """Of a job: RUNNING, PENDING, COMPLETED …"""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, condition: Callable[[], bool], seconds: float, what: Callable[[], str] = str) -> None:
        """Until the condition holds; what: is shown if it never does."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what()}\n{self.run('scontrol', 'show', 'job')}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        """The end of what the daemons say."""
        return "".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) + "\n"
            for path in sorted(self.folder.glob("*.log"))
        )


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start it; everything is stopped and put back at the end."""
    cluster = Slurm(folder)
    (folder / "state").mkdir()
    ports = [_free_port() for _ in range(3)]
    nodes = [
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr={own_address()} Port={port} CPUs=8 State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    ]
    text = CONF.format(
        folder=folder, host=socket.gethostname(), controller=ports[0], nodes="\n".join(nodes), names=",".join(NODES)
    )
    (folder / "slurm.conf").write_text(text)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_names_in_hosts())
        stack.enter_context(_daemon(*_munged(folder)))
        stack.enter_context(_daemon(["slurmctld", "-D"], cluster.env))
        for name in NODES:
            stack.enter_context(_daemon(["slurmd", "-D", "-N", name], cluster.env))
        ready = lambda: cluster.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"]
        answers = lambda: subprocess.run(["scontrol", "ping"], env=cluster.env, capture_output=True).returncode == 0
        cluster.wait(lambda: answers() and ready(), 60)
        yield cluster


def own_address() -> str:
    """An address of this machine that is not loopback, as a real node has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: the kernel only looks up the way
        return probe.getsockname()[0]


@contextlib.contextmanager
def _names_in_hosts() -> Iterator[None]:
    hosts = Path("/etc/hosts")
    before = hosts.read_text()
    hosts.write_text(f"{before.rstrip()}\n{own_address()} {' '.join(NODES)}\n")  # in place: it may be a mount
    try:
        yield
    finally:
        hosts.write_text(before)


def _munged(folder: Path) -> tuple[list[str], dict[str, str]]:
    """munged insists on folders that only their owner writes to; those of pytest in /tmp are not."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munged.pid"}
    files |= {"log-file": folder / "munged.log", "seed-file": folder / "munged.seed"}
    return ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())], dict(
        os.environ
    )


@contextlib.contextmanager
def _daemon(command: list[str], env: dict[str, str]) -> Iterator[None]:
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


if __name__ == "__main__":  # to look at it by hand: python -m tests.slurm_cluster FOLDER
    with slurm(Path(sys.argv[1])) as running:
        print(running.run("sinfo"), f"export SLURM_CONF={running.folder}/slurm.conf")
        input()
