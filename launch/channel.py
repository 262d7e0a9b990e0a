"""JSON lines between two pods, each of which notices when the other is gone. No JAX."""

import contextlib
import json
import socket
import time
from typing import Any

BEAT_SECONDS = 2.0
"""Each end says so often that it is there."""

SILENT_SECONDS = 10.0
"""After this silence the other is lost: its machine is, or the network between."""

CONNECT_SECONDS = 1.0
"""What is on the way to a pod that is gone answers nothing at all."""

Message = dict[str, Any]


class Channel:
    """One end of a connection. Nothing here waits for the other end.

    lost: whether the other end has closed it, or has been silent for too long; nothing comes or goes any more.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket, self._read = connection, b""
        self._heard = self._sent = time.monotonic()
        self.lost = False

    def send(self, message: Message) -> None:
        """Send a message, or find that the other end is lost."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()
        self._sent = time.monotonic()

    def receive(self) -> list[Message]:
        """The messages that have come; to be asked several times a second, as it also shows that this end is there."""
        now = time.monotonic()
        if now - self._sent > BEAT_SECONDS:
            self.send({})
        try:
            while not self.lost:
                part = self._socket.recv(1 << 16)
                self._read, self._heard = self._read + part, now
                if not part:
                    self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if now - self._heard > SILENT_SECONDS:
            self.close()
        *lines, self._read = self._read.split(b"\n")
        return [message for line in lines if (message := _message(line))]

    def close(self) -> None:
        """No more is said or heard."""
        self.lost = True
        self._socket.close()


def _message(line: bytes) -> Message:
    """What a line says; nothing where it is no message, as strangers may connect to any port."""
    with contextlib.suppress(ValueError):
        message = json.loads(line)
        return message if isinstance(message, dict) else {}
    return {}


def connect(host: str, port: int) -> Channel | None:
    """A channel to who listens there; None: nobody does."""
    try:
        return Channel(socket.create_connection((host, port), timeout=CONNECT_SECONDS))
    except OSError:  # no such name, no such machine, or it does not listen
        return None
