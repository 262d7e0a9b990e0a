"""A folder of published weights, checked before anything is read: config.json and safetensors files."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshkit.errors import MeshkitError
from meshkit.models.config_json import CONFIG, read, read_json
from meshkit.models.presets import Sizes
from meshkit.models.published import Config

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""What safetensors calls a dtype -> its name, of those that weights can have."""

Index = tuple[slice, ...]


class Found(NamedTuple):
    """A tensor in a file."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class Folder:
    """The opened folder: `sizes` of the model, `tensors` by name. Files stay memory-mapped; reads copy slices alone.

    Raises MeshkitError naming the file, and the field or tensor, that is missing, malformed or unsupported.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            import safetensors
        except ImportError:
            raise MeshkitError(f"{path}: reading it needs safetensors: pip install 'meshkit[hf]'") from None
        self.path, self._open = Path(path), safetensors.safe_open
        self._broken: type[Exception] = safetensors.SafetensorError
        if not self.path.is_dir():
            raise MeshkitError(f"{path}: no such folder; weights come as a folder with {CONFIG} and {SINGLE}")
        self.config: Config = read_json(self.path / CONFIG)
        self.sizes: Sizes = read(self.config, str(self.path / CONFIG))
        self._files: dict[Path, Any] = {}
        self.tensors = self._find()

    def read(self, name: str, index: Index) -> np.ndarray:
        """A slice of a tensor, in the dtype of its file."""
        found = self.tensors[name]
        return self._files[found.file].get_slice(name)[index]

    def dtype(self, names: list[str]) -> str:
        """The widest dtype of these tensors."""
        kinds = {self.tensors[name].dtype for name in names}
        return kinds.pop() if len(kinds) == 1 else "float32" if "float64" not in kinds else "float64"

    def _find(self) -> dict[str, Found]:
        tensors: dict[str, Found] = {}
        placed = self._placed()
        for file in sorted(set(placed.values())) if placed else [self.path / SINGLE]:
            for name, found in self._inside(file).items():
                if placed and placed.get(name) != file:
                    continue  # a leftover: the index has the say
                tensors[name] = found
        for name, file in placed.items():
            if name not in tensors:
                raise MeshkitError(f"{file}: holds no tensor {name!r}, which {self.path / INDEX} places there")
        return tensors

    def _placed(self) -> dict[str, Path]:
        """Tensor -> its file, by the index; empty where one file holds all."""
        index = self.path / INDEX
        if not index.exists():
            return {}
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict) or not table or not all(isinstance(file, str) for file in table.values()):
            raise MeshkitError(f'{index}: "weight_map" must say a file for each tensor')
        for name, file in table.items():
            if file != Path(file).name or not file.endswith(".safetensors"):
                raise MeshkitError(f"{index}: {name} in {file!r}: not the name of a .safetensors file of this folder")
        return {name: self.path / file for name, file in table.items()}

    def _inside(self, file: Path) -> dict[str, Found]:
        """The tensors of a file; it stays open."""
        beside = list(self.path.iterdir())
        if file not in beside or not file.is_file():  # a name too long for a file is none
            kinds = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
            there = sorted(path.name for path in beside if path.suffix in kinds)
            raise MeshkitError(
                f"{file}: missing; weights are read from safetensors files with {SINGLE} or {INDEX}; the folder has "
                f"{', '.join(there) or 'no weights'}"
            )
        try:
            self._files[file] = opened = self._open(file, framework="np").__enter__()
        except (self._broken, OSError) as error:
            raise MeshkitError(f"{file}: not a whole safetensors file: {error}") from None
        found = {}
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            part = opened.get_slice(name)
            kind = part.get_dtype()
            found[name] = Found(file, tuple(part.get_shape()), DTYPES.get(kind, kind))
        return found
