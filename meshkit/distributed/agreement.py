"""What every process of a run must have alike, compared before it is relied on.

The facts go through the key-value store of JAX's coordinator, so that processes whose programs would wait for one
another for ever can still be told apart.
"""

import functools
import hashlib
import itertools
import json
import os
import platform
import re
import socket
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import meshkit
from meshkit.config import RunConfig
from meshkit.distributed.processes import store
from meshkit.errors import MeshkitError
from meshkit.models import build

WAIT_SECONDS = 1800  # of the processes for the slowest of them: compiling takes its time

Facts = Mapping[str, str]

_rounds = itertools.count()


def on_start(config: RunConfig) -> None:
    """Compare config, code and versions. Raises MeshkitError naming what differs, and where."""
    _compare(
        {
            **_flat(config.model_dump()),
            "meshkit's code": code(),
            "jax": jax.__version__,
            "jaxlib": metadata.version("jaxlib"),
            "Python": ".".join(platform.python_version_tuple()[:2]),
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        }
    )


def on_data(identity: str) -> None:
    """Compare what is trained on (`Sources.identity`). Raises MeshkitError as `on_start` does."""
    _compare({"the training data": identity})


def on_program(mesh: jax.sharding.Mesh, compiled: Any) -> None:
    """Compare the mesh and the compiled step. Raises MeshkitError as `on_start` does."""
    ids = [device.id for device in mesh.devices.flat]
    _compare({"mesh": f"{dict(mesh.shape)}, devices {_sum(str(ids))}", "compiled program": _program(compiled)})


@functools.cache
def code() -> str:
    """The version of meshkit, and a hash of its source: an editable copy changes without a new version."""
    homes = [Path(str(module.__file__)).parent for module in (meshkit, build)]
    files = [
        (path.relative_to(home), path.read_text(encoding="utf-8")) for home in homes for path in home.rglob("*.py")
    ]
    return f"{meshkit.__version__} {_sum(*(f'{name}{text}' for name, text in sorted(files)))}"


def _program(compiled: Any) -> str:
    """A hash of the program's text, less what may differ and run together: where the source lies, tuning."""
    # Both stand at the end of an instruction's line.
    return _sum(re.sub(r", (metadata|backend_config)=\{.*$", "", compiled.as_text(), flags=re.MULTILINE))


def _sum(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: json.dumps(value)}
    return found


# --- comparing ----------------------------------------------------------------------------------


def _compare(facts: Facts) -> None:
    """Every process calls this with its facts: process 0 compares, and all get its verdict."""
    if jax.process_count() == 1:
        return
    folder, me, wait = f"meshkit/agreement/{next(_rounds)}", jax.process_index(), 1000 * WAIT_SECONDS
    store().key_value_set(f"{folder}/{me}", json.dumps([socket.gethostname(), facts]))
    if me == 0:
        said = (store().blocking_key_value_get(f"{folder}/{k}", wait) for k in range(jax.process_count()))
        store().key_value_set(f"{folder}/verdict", "; ".join(differences(map(json.loads, said))))
    verdict = store().blocking_key_value_get(f"{folder}/verdict", wait)
    if verdict:
        raise MeshkitError(
            f"the processes do not agree: {verdict}. Start all of them with the same config, data, code and environment"
            if me == 0
            else f"process {me} on {socket.gethostname()}: the processes do not agree: see the message of process 0"
        )


def differences(said: Iterable[tuple[str, Facts]]) -> list[str]:
    """A clause for every fact that is not the same everywhere, from (host, facts) of process 0, 1 and so on."""
    said = list(said)
    names = dict.fromkeys(name for _, facts in said for name in facts)
    found = []
    for name in names:
        holders: dict[str, list[int]] = {}
        for number, (_, facts) in enumerate(said):
            holders.setdefault(facts.get(name, "nothing"), []).append(number)
        if len(holders) > 1:
            values = sorted(holders.items(), key=lambda item: -len(item[1]))  # the odd ones last
            spelled = " and ".join(f"{value or 'unset'} in {_who(numbers, said)}" for value, numbers in values)
            found.append(f"{name} is {spelled}")
    return found


def _who(numbers: list[int], said: list[tuple[str, Facts]], most: int = 8) -> str:
    """ "processes 0, 1 and 5 more (hosts a, b)"."""
    hosts = list(dict.fromkeys(said[number][0] for number in numbers))
    few = lambda items: ", ".join(map(str, items[:most])) + (f" and {len(items) - most} more" * (len(items) > most))
    plural = lambda noun, items, more: noun + more * (len(items) > 1)
    return f"{plural('process', numbers, 'es')} {few(numbers)} ({plural('host', hosts, 's')} {few(hosts)})"
