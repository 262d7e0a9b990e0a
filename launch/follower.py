"""A pod that follows a leader, and the leader's view of it (see `pods.py`). No JAX."""

import subprocess
import time

from meshkit.launch.channel import Channel, Message
from meshkit.launch.pod_job import Job, start, stop
from meshkit.launch.supervisor import LOST_SECONDS, POLL_SECONDS, Supervisor

LOST = -9
"""Stands for the exit code of a process whose pod is gone."""


class Follower:
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
                self._child = start(self._job, message["part"])
            case "end" if self._child is not None:
                self._child.terminate()
            case "kill" if self._child is not None:
                self._child.kill()
            case "over":
                return int(message["code"])
        return None

    def _end(self) -> None:
        if self._child is not None:
            stop(self._child, LOST_SECONDS)


class Remote:
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
