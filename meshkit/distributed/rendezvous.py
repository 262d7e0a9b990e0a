"""The way of the processes of a run to its process 0, checked and waited for. No JAX."""

import contextlib
import errno
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from meshkit.distributed.launchers import ADDRESS, Place
from meshkit.errors import LATE, MeshkitError

JOIN_SECONDS = 300
"""Processes that are not there after this are not waited for any longer."""

LOOPBACK_SECONDS = 60
"""The same for process 0 at an address that means this very host, as it may be another that was meant."""

NOTICE_SECONDS = 5
"""After this it is said what is waited for."""

FIX = "set it to HOST:PORT, with a name or IP address of the host of process 0 that the other hosts reach"


class LateError(MeshkitError):
    """The other processes did not come in time. Another start may do."""

    exit_code = LATE


def check(place: Place) -> None:
    """Raises MeshkitError, with the fix, when the other processes cannot reach process 0 at its address, and LateError
    when it does not come to be there."""
    host, port = _split(place.address)
    end = time.monotonic() + JOIN_SECONDS
    with saying_what_is_waited_for(f"the name {host}", place):
        found = _addresses(place, host, port, end)
    loopback = all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
    # On its own host the name of process 0 may well mean loopback, as in Debian's /etc/hosts.
    if loopback and (place.hosts or 1) > 1 and (_is_loopback(host) or not place.same_host):
        raise MeshkitError(
            f"{ADDRESS} = {place.address!r} is {socket.gethostname()} itself (loopback), and the run has {place.hosts} "
            f"hosts: {FIX}"
        )
    if place.number == 0:
        _check_own(place, found)
        _check_free(port)
    else:
        with saying_what_is_waited_for("process 0", place, loopback):
            _wait_for(place, host, port, loopback)


@contextlib.contextmanager
def saying_what_is_waited_for(what: str, place: Place, loopback: bool | None = None) -> Iterator[None]:
    """Something is waited for: say so when it takes longer than a moment.

    loopback: whether the address of process 0 means this very host; None: as it is written.
    """
    text = f"{place} waits for {what} at {ADDRESS} = {place.address!r}"
    if _is_loopback(_split(place.address)[0]) if loopback is None else loopback:
        text += (
            f", which is {socket.gethostname()} itself (loopback): if process 0 runs on another host than others, {FIX}"
        )
    with after(NOTICE_SECONDS, lambda: _say(text)):
        yield


@contextlib.contextmanager
def after(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Do something when the body takes longer than that."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise MeshkitError(f"{ADDRESS} = {address!r}: it is the host and the port of process 0, as node1:1234")
    return host.strip("[]"), int(port)


def _addresses(place: Place, host: str, port: int, end: float) -> set[str]:
    """The IP addresses of `host`. Those of a pod are waited for until `end`: it has none before it is started."""
    while True:
        try:
            return {str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        except socket.gaierror as error:
            why = f"{ADDRESS} = {place.address!r}: {socket.gethostname()} cannot find {host!r} ({error.strerror})"
            if not place.pods:
                raise MeshkitError(f"{why}: {FIX}") from None
            if time.monotonic() > end:
                raise LateError(
                    f"{why} after {JOIN_SECONDS} s: the pod of process 0 is not there yet (kubectl get pods), or no "
                    "headless service gives it that name"
                ) from None
        time.sleep(0.2)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_own(place: Place, found: set[str]) -> None:
    """Say at once when no address of process 0 is one of its host. An error would be too much: a router or a service of
    a cluster may pass on what comes there."""
    if not any(map(_is_own, found)):
        _say(
            f"{ADDRESS} = {place.address!r} is no address of {socket.gethostname()}, on which process 0 runs: unless "
            f"something passes on what comes there, no other process can join: {FIX}"
        )


def _is_own(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as mine:
            mine.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _check_free(port: int) -> None:
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            mine.bind(("", port))
        except OSError as error:
            raise MeshkitError(
                f"port {port} of {ADDRESS} cannot be opened ({error.strerror}): choose another"
            ) from None


def _wait_for(place: Place, host: str, port: int, loopback: bool) -> None:
    """Until something listens there: JAX itself would say less, and later."""
    seconds = min(JOIN_SECONDS, LOOPBACK_SECONDS) if loopback else JOIN_SECONDS
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                why = " (loopback: each host means itself)" if loopback else ""
                raise LateError(
                    f"process {place.number} on {socket.gethostname()}: nothing answers at {ADDRESS} = "
                    f"{place.address!r}{why} after {seconds} s ({error.strerror or error}): start process 0, "
                    f"open the port between the hosts, or {FIX}"
                ) from None
        time.sleep(0.2)
