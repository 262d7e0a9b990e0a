"""`meshkit launch pod`: one pod of an elastic Job in Kubernetes, which goes on with the nodes that are left. No JAX.

Every pod runs a supervisor. The lowest-numbered pod that is there leads: the others follow it, tell when their process
ends, and do what it says. It chooses the mesh for the pods that it has, starts a process in each that the mesh takes,
and again when one is lost or a larger mesh becomes possible. A run needs *more than half* of the Job's pods to be
there: two halves that lost sight of each other would otherwise both go on, in one folder.
"""

import contextlib
import socket
import time
from typing import NamedTuple

from meshkit.config import RunConfig
from meshkit.errors import SAVED, MeshkitError, counted
from meshkit.launch import elastic
from meshkit.launch.channel import CONNECT_SECONDS, Channel, connect
from meshkit.launch.follower import Follower, Remote
from meshkit.launch.pod_job import Job, start, stop
from meshkit.launch.supervisor import LOST_SECONDS, POLL_SECONDS, Ended, Meaning, Supervisor, say

LOOK_SECONDS = 5.0
"""How often a leader looks for a pod with a lower number than its own, and says what it waits for."""


def run(job: Job, pod: int) -> int:
    """Be pod number `pod` until the run is over; the exit code."""
    with Supervisor(job.grace, say) as supervisor:
        spent = 0
        while True:
            leader = _look(job, pod)
            if leader is not None:
                code, spent = Follower(job, pod, leader, spent).follow(supervisor)
            else:
                with _Leader(job, pod, spent) as here:
                    code, spent = here.lead(supervisor), here.spent
            if supervisor.stopped is not None:
                return SAVED if code is None else code
            if code is not None:
                return code


def _look(job: Job, pod: int) -> Channel | None:
    """The way to the pod with the lowest number that leads; None: none below this one does."""
    found = (connect(*job.supervisor(lower)) for lower in range(pod))
    return next((channel for channel in found if channel is not None), None)


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
        self._remotes: list[Remote] = []
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
            if ended.first is None or ended.meaning is Meaning.SAVED:
                continue  # a larger mesh is possible, or a process was told to end, as on a node that is drained
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
                self._remotes.append(Remote(Channel(connection)))
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
        own = start(self._job, {**part, "number": 0})
        try:
            return supervisor.watch([own, *members], lambda: self._is_enough(config))
        finally:
            if own.poll() is None:
                stop(own, LOST_SECONDS)

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
