"""meshkit: train Transformers on any data × tensor × pipe mesh.

    import meshkit
    result = meshkit.train("launch/configs/quickstart.toml", steps=50)

Names are imported when first used, so that `import meshkit` takes milliseconds and touches no device.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshkit.config import MeshShape, RunConfig
    from meshkit.errors import MeshkitError
    from meshkit.planner.plan import plan
    from meshkit.trainer import train

__version__ = "0.1.0"
__all__ = ["MeshShape", "MeshkitError", "RunConfig", "__version__", "plan", "train"]

_HOME = {
    "MeshShape": "meshkit.config",
    "MeshkitError": "meshkit.errors",
    "RunConfig": "meshkit.config",
    "plan": "meshkit.planner.plan",
    "train": "meshkit.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'meshkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
