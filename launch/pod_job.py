"""What the pods of an elastic Job in Kubernetes have in common, and the process that each starts. No JAX."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from meshkit.config import RunConfig
from meshkit.distributed.launchers import ADDRESS, COUNT, INDEX, NUMBER
from meshkit.errors import MeshkitError
from meshkit.launch import elastic
from meshkit.launch.channel import Message
from meshkit.launch.supervisor import end_with_parent
from meshkit.overrides import words

TRAIN = [sys.executable, "-m", "meshkit", "train"]


@dataclasses.dataclass(frozen=True)
class Job:
    """What all pods of a Job are told. config: on the whole mesh. nodes: pods, when none is lost; devices: of each.

    least: nodes that are enough. hosts: host:port of JAX's coordinator in pod {}; the supervisors use the next port.
    settle: seconds in which no pod comes or goes, after which those that are missing are not waited for.
    """

    path: str
    config: RunConfig
    overrides: Mapping[str, Any]
    nodes: int
    devices: int
    least: int
    hosts: str
    restarts: int
    grace: float
    settle: float

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^{}]*\{\}.*:\d+|.*:\d*\{\}\d*", self.hosts):
            raise MeshkitError(f"--hosts {self.hosts}: write the host and port of pod {{}}, as NAME-{{}}.NAME:8476")

    def supervisor(self, pod: int) -> tuple[str, int]:
        """Where the supervisor of a pod listens when it leads."""
        host, _, port = self.hosts.format(pod).rpartition(":")
        return host, int(port) + 1

    @property
    def quorum(self) -> int:
        """Pods that a run needs."""
        return self.nodes // 2 + 1

    def fit(self, pods: int) -> RunConfig | None:
        """The config on the largest mesh for so many pods; None: there is none, or they are too few."""
        if pods < self.quorum:
            return None
        return elastic.fit(self.config, [n * self.devices for n in range(self.least, pods + 1)])


def number(nodes: int, env: Mapping[str, str] = os.environ) -> int:
    """Of this pod among `nodes`. Raises MeshkitError outside of an Indexed Job."""
    if not env.get(INDEX, "").isdigit() or int(env[INDEX]) >= nodes:
        raise MeshkitError(
            f"{INDEX} is {env.get(INDEX)}, not a number under {nodes}: `meshkit launch pod` is for the pods that "
            "`meshkit launch k8s` makes"
        )
    return int(env[INDEX])


def start(job: Job, part: Message) -> "subprocess.Popen[bytes]":
    """This pod's process. part: its number, of how many, the address of the first, and the mesh."""
    env = os.environ | {ADDRESS: part["address"], COUNT: str(part["count"]), NUMBER: str(part["number"])}
    command = [*TRAIN, job.path, *words({**job.overrides, **part["mesh"]})]
    return subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end_with_parent
    )


def stop(child: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Its exit code, after `seconds` at the latest."""
    child.terminate()
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
