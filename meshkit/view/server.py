"""The page and its API on localhost."""

import contextlib
import functools
import http.server
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from meshkit.errors import MeshkitError
from meshkit.view.page_file import Boot, page
from meshkit.view.payload import PARTS, part, to_json
from meshkit.view.words import said
from meshkit.view.world import World

HOST = "127.0.0.1"

API = "/api/"


class Handler(http.server.BaseHTTPRequestHandler):
    """GET / is the page, GET /api/<part>?<setting> a part of it as JSON; an error is a Text."""

    def __init__(self, world: World, boot: Boot, *args: Any) -> None:
        self.world, self.boot = world, boot
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer one request."""
        url = urlsplit(self.path)
        if url.path == "/":
            self._send(HTTPStatus.OK, page(self.boot), "text/html")
        elif url.path.removeprefix(API) in PARTS:
            try:
                self._send(HTTPStatus.OK, part(self.world, url.path.removeprefix(API), url.query))
            except MeshkitError as error:
                self._send(HTTPStatus.BAD_REQUEST, to_json(said(str(error))))
        else:
            self._send(HTTPStatus.NOT_FOUND, to_json(said(f"{url.path}: there are / and {API}<part>")))

    def _send(self, status: HTTPStatus, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        with contextlib.suppress(ConnectionError):  # the page has gone on meanwhile
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


def server(world: World, boot: Boot, port: int = 0) -> http.server.ThreadingHTTPServer:
    """A server on localhost, to be run by `serve_forever`; port 0: any free one.

    Raises MeshkitError when the port is taken, or none.
    """
    if not 0 <= port < 2**16:
        raise MeshkitError(f"--port {port}: from 1 to {2**16 - 1}, or leave it out for a free one")
    try:
        return http.server.ThreadingHTTPServer((HOST, port), functools.partial(Handler, world, boot))
    except OSError as error:
        raise MeshkitError(f"--port {port}: {error.strerror}: choose another, or leave it out") from None
