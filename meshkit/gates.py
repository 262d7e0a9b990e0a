"""The check that a compiled step cannot hang: what talks behind a gate that only some stages open.

Stages that are idle in a tick skip their layers, so behind that gate a device may only wait for devices
that always go with it: its tensor peers, and the data peers of its stage (ZeRO 2 and 3). Which collectives
a product of a user's own model becomes is the compiler's choice; this reads what it chose.
"""

import re
from typing import Any

from jax.sharding import Mesh

from meshkit import hlo
from meshkit.errors import MeshkitError
from meshkit.mesh import DATA, TENSOR
from meshkit.pipeline.buffers import STAGE_GATE


def check(compiled: Any, mesh: Mesh) -> None:
    """Raises MeshkitError naming each collective of a compiled step that idle stages would never join."""
    found = sorted({_spell(c) for c in hlo.read(compiled.as_text()).collectives() if _hangs(c, mesh)})
    if found:
        raise MeshkitError(
            "this model would hang: in a layer the compiler put exchanges between stages that are not always busy "
            f"together: {'; '.join(found)}. They come from arrays that the compiler cuts anew: in the block, put "
            "meshkit.pipeline.stage.whole_sequence around what is mixed along the sequence, and give parameters an "
            "out_sharding; or set mesh.tensor to 1"
        )


def _hangs(collective: hlo.Collective, mesh: Mesh) -> bool:
    gated = any(re.search(rf"/{STAGE_GATE}/while$", loop.op_name) for loop in collective.loops if loop.trips is None)
    between_peers = collective.kind != "collective-permute" and collective.axes(dict(mesh.shape)) <= {TENSOR, DATA}
    return gated and not between_peers


def _spell(collective: hlo.Collective) -> str:
    """The kind and the end of the name, which says the operation in the model."""
    return f"{collective.kind} for {'/'.join(collective.op_name.split('/')[-3:])}"
