"""`meshkit launch pod`: one pod of an elastic Job in Kubernetes, which goes on with the nodes that are left. No JAX.

Every pod runs a supervisor. The lowest-numbered pod that is there leads: the others follow it, tell when their process
ends, and do what it says. It chooses the mesh for the pods that it has, starts a process in each that the mesh takes,
and again when one is lost or a larger mesh becomes possible. A run needs *more than half* of the Job's pods to be
there: two halves that lost sight of each other would otherwise both go on, in one folder.
"""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from meshkit.config import RunConfig
from meshkit.errors import RESTART, MeshkitError, counted
from meshkit.launch import elastic
from meshkit.launch.channel import CONNECT_SECONDS, Channel, Message, connect
from meshkit.launch.supervisor import LOST_SECONDS, POLL_SECONDS, Ended, Meaning, Supervisor, end_with_parent, say
from meshkit.launchers import ADDRESS, COUNT, INDEX, NUMBER
from meshkit.overrides import words

LOOK_SECONDS = 5.0
"""How often a leader looks for a pod with a lower number than its own, and says what it waits for."""

TRAIN = [sys.executable, "-m", "meshkit", "train"]

LOST = -9
"""Stands for the exit code of a process whose pod is gone."""


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


def run(job: Job, pod: int) -> int:
    """Be pod number `pod` until the run is over; the exit code."""
    with Supervisor(job.grace, say) as supervisor:
        spent = 0
        while True:
            leader = _look(job, pod)
            if leader is not None:
                code, spent = _Follower(job, pod, leader, spent).follow(supervisor)
            else:
                with _Leader(job, pod, spent) as here:
                    code, spent = here.lead(supervisor), here.spent
            if supervisor.stopped is not None:
                return RESTART if code is None else code
            if code is not None:
                return code


def number(env: Mapping[str, str] = os.environ) -> int:
    """Of this pod. Raises MeshkitError outside of an Indexed Job."""
    if not env.get(INDEX, "").isdigit():
        raise MeshkitError(f"{INDEX} is not set: `meshkit launch pod` is for the pods that `meshkit launch k8s` makes")
    return int(env[INDEX])


def _look(job: Job, pod: int) -> Channel | None:
    """The way to the pod with the lowest number that leads; None: none below this one does."""
    found = (connect(*job.supervisor(lower)) for lower in range(pod))
    return next((channel for channel in found if channel is not None), None)


# --- a process, and who follows -------------------------------------------------------------------


def _start(job: Job, part: Message) -> "subprocess.Popen[bytes]":
    """This pod's process. part: its number, of how many, the address of the first, and the mesh."""
    env = os.environ | {ADDRESS: part["address"], COUNT: str(part["count"]), NUMBER: str(part["number"])}
    command = [*TRAIN, job.path, *words({**job.overrides, **part["mesh"]})]
    return subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end_with_parent
    )


def _stop(child: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Its exit code, after `seconds` at the latest."""
    child.terminate()
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


class _Follower:
    """A pod that does what its leader says. spent: restarts that the run has had."""

    def __init__(self, job: Job, pod: int, leader: Channel, spent: int) -> None:
        self._job, self._leader, self._spent = job, leader, spent
        self._child: subprocess.Popen[bytes] | None = None
        leader.send({"pod": pod, "spent": spent})

    def follow(self, supervisor: Supervisor) -> tuple[int | None, int]:
        """Until the leader says that the run is over (its exit code), or is gone (None); and restarts so far."""
        stopping = False
        while True:
            over = [code for message in self._leader.receive() if (code := self._obey(message)) is not None]
            if over or self._leader.lost:
                self._end()
                return (over[0] if over else None), self._spent
            if supervisor.stopped is not None and not stopping:
                stopping = True
                if self._child is not None:  # its process tells the others; they agree on a step
                    self._child.terminate()
            if self._child is not None and (code := self._child.poll()) is not None:
                self._leader.send({"ended": code})
                self._child = None
            if stopping and self._child is None:
                self._leader.close()
                return None, self._spent
            time.sleep(POLL_SECONDS)

    def _obey(self, message: Message) -> int | None:
        match message.get("say"):
            case "start":
                self._spent = message["spent"]
                self._child = _start(self._job, message["part"])
            case "end" if self._child is not None:
                self._child.terminate()
            case "kill" if self._child is not None:
                self._child.kill()
            case "over":
                return int(message["code"])
        return None

    def _end(self) -> None:
        if self._child is not None:
            _stop(self._child, LOST_SECONDS)


class _Remote:
    """The process of a pod that follows, to its leader: what a supervisor needs of a process."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.pod, self.spent = channel, -1, 0
        self._code: int | None = None

    def listen(self) -> None:
        """Take in what it has said."""
        for message in self.channel.receive():
            if "pod" in message:
                self.pod, self.spent = message["pod"], message["spent"]
            if "ended" in message:
                self._code = message["ended"]

    def start(self, part: Message, spent: int) -> None:
        """Start its process."""
        self._code = None
        self.channel.send({"say": "start", "part": part, "spent": spent})

    def poll(self) -> int | None:
        """The exit code, if its process has ended, or it is lost."""
        self.listen()
        return LOST if self._code is None and self.channel.lost else self._code

    def terminate(self) -> None:
        self.channel.send({"say": "end"})

    def kill(self) -> None:
        self.channel.send({"say": "kill"})

    def wait(self) -> int:
        """The exit code."""
        while (code := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return code


# --- who leads ------------------------------------------------------------------------------------


class _Lower(NamedTuple):
    """A pod that came later, but has a lower number, and so leads next; how many are there with it."""

    pod: int
    there: int


def _greeting(job: Job, pod: int) -> _Lower | None:
    """What a pod that leads, or would, says to who comes; None: it does not."""
    channel, end = connect(*job.supervisor(pod)), time.monotonic() + CONNECT_SECONDS
    while channel is not None and not channel.lost and time.monotonic() < end:
        for message in channel.receive():
            if "there" in message:
                channel.close()
                return _Lower(pod, message["there"])
        time.sleep(POLL_SECONDS)
    return None


def _open(port: int) -> socket.socket:
    """A door for those who follow. Raises MeshkitError when something else listens there."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        door = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise MeshkitError(f"--hosts: port {port} cannot be opened ({error.strerror}): choose another") from None
    door.setblocking(False)
    return door


class _Leader:
    """The lowest pod that is there. A context manager for the time that it can be followed."""

    def __init__(self, job: Job, pod: int, spent: int) -> None:
        self._job, self._pod, self.spent = job, pod, spent
        self._remotes: list[_Remote] = []
        self._door = _open(job.supervisor(pod)[1])
        self._changed = self._looked = time.monotonic()
        self._lower: _Lower | None = None

    def __enter__(self) -> "_Leader":
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()
        for remote in self._remotes:
            remote.channel.close()

    def lead(self, supervisor: Supervisor) -> int | None:
        """Runs until one is complete, or fails in a way that no restart mends (the exit code for all pods), or a
        lower pod is there to lead (None)."""
        while True:
            config = self._gather(supervisor)
            if config is None:
                return None
            ended = self._run(supervisor, config)
            if supervisor.stopped is not None:
                return None
            if all(code == 0 for code in ended.codes):
                return self._over(0)
            if ended.first is None:
                continue  # a larger mesh is possible
            if ended.meaning is Meaning.MISTAKE:
                say("no restart: it would fail again")
                return self._over(ended.code)
            if self.spent == self._job.restarts:
                say(f"no restart is left of {self._job.restarts} (--restarts)")
                return self._over(1)
            self.spent += 1
            say(f"restart {self.spent} of {self._job.restarts}, from the last checkpoint, with the pods that are left")

    def _over(self, code: int) -> int:
        for remote in self._remotes:
            remote.channel.send({"say": "over", "code": code})
        return code

    # --- who is there

    @property
    def _there(self) -> int:
        return 1 + sum(remote.pod >= 0 for remote in self._remotes)

    def _attend(self) -> None:
        """Let in who comes, and notice who is gone; now and then, look for a lower pod."""
        before = self._there
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._door.accept()
                self._remotes.append(_Remote(Channel(connection)))
                self._remotes[-1].channel.send({"there": before})
        for remote in self._remotes:
            remote.listen()
        self._remotes = [remote for remote in self._remotes if not remote.channel.lost]
        self.spent = max([self.spent, *(remote.spent for remote in self._remotes)])
        lower = self._lower
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._lower = self._look_lower()
            self._looked = time.monotonic()
        if self._there != before or self._lower != lower:
            self._changed = time.monotonic()

    def _look_lower(self) -> "_Lower | None":
        found = (_greeting(self._job, pod) for pod in range(self._pod))
        return next((lower for lower in found if lower is not None), None)

    @property
    def _settled(self) -> bool:
        return time.monotonic() - self._changed > self._job.settle

    def _gather(self, supervisor: Supervisor) -> RunConfig | None:
        """The config for the pods that are there, once there are enough; None: another leads, or the end is asked."""
        job, said = self._job, 0
        while supervisor.stopped is None:
            self._attend()
            if self._lower is not None:
                say(f"pod {self._lower.pod} is there: it leads")
                return None
            if self._there == job.nodes or self._settled:
                config = job.fit(self._there)
                if config is not None:
                    return config
            if said != self._there:
                said = self._there
                say(f"{said} of {counted(job.nodes, 'pod')} are there{self._lacking(said)}")
            time.sleep(POLL_SECONDS)
        return None

    def _lacking(self, pods: int) -> str:
        if pods < self._job.quorum:
            return f": a run needs more than half, {self._job.quorum}"
        return "" if self._job.fit(pods) else f", on which no mesh of {self._job.least} or more nodes is legal"

    # --- a run

    def _run(self, supervisor: Supervisor, config: RunConfig) -> Ended:
        """Start a process in as many pods as the mesh takes, the lowest numbers first, and watch them."""
        count = config.mesh.devices // self._job.devices
        following = sorted((remote for remote in self._remotes if remote.pod >= 0), key=lambda remote: remote.pod)
        members = following[: count - 1]
        part = {"count": count, "address": self._job.hosts.format(self._pod), "mesh": elastic.changes(config)}
        say(f"pods {', '.join(map(str, [self._pod, *(member.pod for member in members)]))}: mesh {config.mesh}")
        for rank, member in enumerate(members, 1):
            member.start({**part, "number": rank}, self.spent)
        own = _start(self._job, {**part, "number": 0})
        try:
            return supervisor.watch([own, *members], lambda: self._is_enough(config))
        finally:
            if own.poll() is None:
                _stop(own, LOST_SECONDS)

    def _is_enough(self, config: RunConfig) -> bool:
        """Whether the run shall save and end: too few are left to be sure that nobody else goes on with it, or a larger
        mesh is possible with who has come since, and has stayed."""
        job = self._job
        self._attend()
        if self._there < job.quorum:
            say(f"{self._there} of {counted(job.nodes, 'pod')} are there{self._lacking(self._there)}")
            return True
        there = self._there + (0 if self._lower is None else self._lower.there)
        if there * job.devices <= config.mesh.devices or not self._settled:
            return False
        larger = job.fit(there)
        if larger is None or larger.mesh.devices <= config.mesh.devices:
            return False
        say(f"{counted(there, 'pod')} are there: the run saves, and goes on with mesh {larger.mesh}")
        return True
