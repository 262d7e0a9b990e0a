"""The page's API on localhost."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from meshkit.errors import MeshkitError
from meshkit.view import payload
from meshkit.view.page_file import Boot
from meshkit.view.server import server
from meshkit.view.setting import Setting
from meshkit.view.world import World

SMALL = Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, batch=16, sequence=128, recompute="none")
WORLD = World.of()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    serving = server(WORLD, Boot(SMALL.query, [], {}))
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_is_served(address: str) -> None:
    status, html = get(address + "/")
    assert status == 200
    assert SMALL.query in html


@pytest.mark.parametrize("name", payload.PARTS)
def test_every_part_is_served(address: str, name: str) -> None:
    status, text = get(f"{address}/api/{name}?{SMALL.query}")
    assert status == 200
    assert text == payload.part(WORLD, name, SMALL.query)


def test_what_is_not_legal_is_a_sentence(address: str) -> None:
    status, text = get(f"{address}/api/overview?tensor=16")
    assert status == 400
    assert "kv_heads = 8" in json.loads(text)["en"]
    assert "不能均分" in json.loads(text)["zh"]


@pytest.mark.parametrize("path", ["/api/", "/api/nothing", "/static/../../etc/passwd", "/favicon.ico"])
def test_there_is_nothing_else(address: str, path: str) -> None:
    status, text = get(address + path)
    assert status == 404
    assert "there are / and /api/" in json.loads(text)["en"]


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_an_error(port: int) -> None:
    with pytest.raises(MeshkitError, match=rf"--port {port}: from 1 to 65535"):
        server(WORLD, Boot("", [], {}), port)


def test_a_port_that_is_taken_is_an_error(address: str) -> None:
    with pytest.raises(MeshkitError, match="choose another"):
        server(WORLD, Boot("", [], {}), int(address.rpartition(":")[2]))
