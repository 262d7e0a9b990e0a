"""What a checkpoint says of itself, and what of it does not go with a config."""

import dataclasses
import json
import platform
import time
from typing import Any, Self

import jax
import optax
import orbax.checkpoint as ocp
import pydantic
from etils import epath

from meshkit import __version__
from meshkit.config import RunConfig
from meshkit.errors import MeshkitError
from meshkit.models.config_json import is_checkpoint
from meshkit.models.presets import Sizes, sizes_of

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Record:
    """step: steps done. samples: the position in the data, samples read by the run from its beginning.

    holds: "state", or "weights" alone. model: every size. data: what the order of samples depends on.
    config: the resolved config of the run that saved it. held_out_loss: if evaluated at this step. base: where the
    frozen weights are, of which a checkpoint with adapters holds none; None: it holds all.
    """

    step: int
    samples: int
    model: dict[str, Any]
    data: dict[str, Any]
    config: dict[str, Any]
    holds: str = "state"
    held_out_loss: float | None = None
    base: str | None = None
    saved: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    format: int = FORMAT

    @classmethod
    def read(cls, folder: epath.Path) -> Self:
        """The record of the checkpoint `folder`; MeshkitError when this meshkit cannot read it."""
        try:
            values = ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(folder / "record")
            if values.get("format") == FORMAT:
                return cls(**values)
            version = values.get("format")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise MeshkitError(
                f"{folder}: what it says of itself cannot be read ({type(error).__name__}: {error}); `meshkit "
                f"checkpoint verify {folder}` names the files that are damaged"
            ) from None
        raise MeshkitError(f"{folder}: version {version!r} of the format, and this meshkit reads version {FORMAT}")

    @property
    def sizes(self) -> Sizes:
        """Every size of the model."""
        return sizes_of(self.model)

    def to_json(self) -> dict[str, Any]:
        """The record as plain values, with time and versions of now."""
        now = {"saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "versions": versions()}
        return dataclasses.asdict(self) | now


def of_run(config: RunConfig, sizes: Sizes, data: str) -> Record:
    """The record of a run at step 0. data: `Sources.identity`."""
    values = {f"model.{name}": value for name, value in dataclasses.asdict(sizes).items()}
    order = {"seed": config.seed, "data.sequence": config.data.sequence, "the training data": data}
    base = None if sizes.adapters is None else base_of(config.model.init_from)
    return Record(step=0, samples=0, model=_values(values), data=order, config=_values(config.model_dump()), base=base)


def base_of(start: str | None) -> str:
    """Where the weights are that adapters stand beside, if a run begins with those in `start`.

    Raises MeshkitError when it begins with none, or they are not there.
    """
    if start is None:
        raise MeshkitError(
            "model.options.lora trains adapters of weights that there are: set model.init_from to a published folder "
            "or a checkpoint"
        )
    base = Record.read(epath.Path(start)).base if is_checkpoint(start) else None
    if base is not None and not epath.Path(base).exists():
        raise MeshkitError(f"{start}: holds adapters of {base}, which is not there: put it back")
    return base or str(epath.Path(start).absolute())


def _values(table: dict[str, Any]) -> dict[str, Any]:
    """The table as it reads back from JSON."""
    return json.loads(json.dumps(table, default=_plain))


def versions() -> dict[str, str]:
    """Of what a checkpoint's content depends on."""
    return {
        "meshkit": __version__,
        "jax": jax.__version__,
        "optax": optax.__version__,
        "orbax": ocp.__version__,
        "python": platform.python_version(),
    }


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, pydantic.BaseModel) else str(value)
