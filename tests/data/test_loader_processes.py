"""Two real processes of four devices each: each reads the rows of its own devices, and together one batch."""

import json
import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import jax
import numpy as np
from meshkit import mesh
from meshkit.config import MeshShape
from meshkit.data.loader import Loader

port, process, data, tensor, pipe = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
asked = []


class Source:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        asked.append(index)
        ids = np.full(4, index)
        return {"tokens": ids, "targets": ids, "weights": np.ones(4)}


devices = mesh.build(MeshShape(data=data, tensor=tensor, pipe=pipe))
with Loader(Source(), batch=16, seed=0, microbatches=2, mesh=devices) as loader:
    asked.clear()
    tokens = loader.at(3)["tokens"]
    assert tokens.shape == (2, 8, 4)
    held = {int(i) for shard in tokens.addressable_shards for i in np.asarray(shard.data).ravel()}
    print(json.dumps({"asked": asked, "held": sorted(held)}))
with Loader(Source(), batch=16, seed=0) as loader:
    print(json.dumps(np.asarray(loader.at(3)["tokens"])[0, :, 0].tolist()))
"""


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((2, 2, 2), 8),  # a replica a process
        ((8, 1, 1), 8),  # four replicas a process
        ((1, 2, 4), 16),  # one replica, its stages on both processes: both need every row
    ],
)
def test_each_process_reads_the_rows_of_its_own_devices(shape: tuple[int, int, int], rows: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, (port, process, *shape))],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "4"},
        )
        for process in range(2)
    ]
    outputs = [child.communicate(timeout=120)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    own, whole = [json.loads(lines[0]) for lines in outputs], json.loads(outputs[0][1])
    assert all(len(process["asked"]) == rows for process in own)
    assert all(sorted(process["asked"]) == process["held"] for process in own)
    assert {i for process in own for i in process["asked"]} == set(whole)
