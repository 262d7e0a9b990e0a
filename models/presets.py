"""Named sizes, and the Sizes that a model is built from. No JAX: planning needs it too."""

import dataclasses
import math
from typing import Self

from meshkit.config import MeshShape, ModelConfig, RopeScaling
from meshkit.errors import MeshkitError, nearest
from meshkit.models.families import FAMILIES, LORA, STYLES, Adapters, Style, checked


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Every size of a Transformer, none left open. Fields as in `ModelConfig`."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    context: int
    tied: bool = False
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    dropout: float = 0.0
    options: dict = dataclasses.field(default_factory=dict)

    @property
    def style(self) -> Style:
        """What a decoder of these sizes does besides."""
        return Style.of(self.family, self.base.options)

    @property
    def adapters(self) -> Adapters | None:
        """The adapters that are trained, instead of the whole model."""
        return Adapters.of(self.options)

    @property
    def base(self) -> Self:
        """The sizes without adapters."""
        return dataclasses.replace(self, options={k: v for k, v in self.options.items() if k != LORA})


def _llama(
    layers: int, width: int, heads: int, kv_heads: int, mlp_width: int, vocab: int, context: int, **more: object
) -> dict:
    return dict(
        family="llama",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=mlp_width,
        vocab=vocab,
        context=context,
        **more,
    )


def _decoder(family: str, *sizes: int, **more: object) -> dict:
    return _llama(*sizes) | dict(family=family, **more)


def _gpt(layers: int, width: int, heads: int, context: int, dropout: float = 0.1) -> dict:
    return dict(
        family="gpt2",
        layers=layers,
        width=width,
        heads=heads,
        mlp_width=4 * width,
        vocab=50257,
        context=context,
        tied=True,
        dropout=dropout,
    )


_LLAMA31 = dict(rope_theta=500_000.0, rope_scaling=RopeScaling())

PRESETS: dict[str, dict] = {
    "tiny": _llama(4, 128, 8, 4, 352, 257, 1024),
    "tiny-gpt2": _gpt(4, 128, 8, 1024, dropout=0.0) | {"vocab": 257},
    # Llama 2 (arXiv 2307.09288) and Llama 3 (arXiv 2407.21783, table 3)
    "llama2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-1b": _llama(
        16,
        2048,
        32,
        8,
        8192,
        128256,
        131072,
        tied=True,
        head_dim=64,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(factor=32.0),
    ),
    "llama3-3b": _llama(
        28,
        3072,
        24,
        8,
        8192,
        128256,
        131072,
        tied=True,
        head_dim=128,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(factor=32.0),
    ),
    "llama3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 131072, **_LLAMA31),
    "llama3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 131072, **_LLAMA31),
    "llama3-405b": _llama(126, 16384, 128, 8, 53248, 128256, 131072, **_LLAMA31),
    # Their published config.json; Qwen2.5 and Qwen3 are sizes of the families qwen2 and qwen3
    "mistral-7b": _decoder("mistral", 32, 4096, 32, 8, 14336, 32000, 32768),
    "qwen2.5-7b": _decoder("qwen2", 28, 3584, 28, 4, 18944, 152064, 32768, rope_theta=1e6, norm_eps=1e-6),
    "qwen3-8b": _decoder("qwen3", 36, 4096, 32, 8, 12288, 151936, 40960, head_dim=128, rope_theta=1e6, norm_eps=1e-6),
    # GPT-2 and GPT-3 (arXiv 2005.14165, table 2.1); GPT-3's sparse layers are dense here
    "gpt2": _gpt(12, 768, 12, 1024),
    "gpt2-medium": _gpt(24, 1024, 16, 1024),
    "gpt2-large": _gpt(36, 1280, 20, 1024),
    "gpt2-xl": _gpt(48, 1600, 25, 1024),
    "gpt3-6.7b": _gpt(32, 4096, 32, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 2048),
    "gpt3-175b": _gpt(96, 12288, 96, 2048),
}


def sizes_of(values: dict) -> Sizes:
    """The sizes that a checkpoint's record holds, "model.layers" and so on."""
    found = {name.removeprefix("model."): value for name, value in values.items()}
    scaling = found.get("rope_scaling")
    return Sizes(**found | {"rope_scaling": None if scaling is None else RopeScaling(**scaling)})


def sizes(config: ModelConfig, vocab: int | None = None) -> Sizes:
    """The preset's sizes with the config's own on top; `vocab` (the data's) if neither config key gives one.

    With `init_from` its config.json stands for the preset, and for the data's vocabulary.
    Raises MeshkitError for an unknown preset, an option that a family has not, or head counts that do not go together.
    """
    unnamed = ("preset", "init_from", "options")
    given = {k: getattr(config, k) for k in type(config).model_fields if k not in unnamed}
    values = _base(config, vocab) | {k: v for k, v in given.items() if v is not None}
    heads, width = values["heads"], values["width"]
    values["kv_heads"] = values.get("kv_heads") or heads
    if heads % values["kv_heads"]:
        raise MeshkitError(
            f"model.heads = {heads} is not a multiple of model.kv_heads = {values['kv_heads']}: "
            f"set model.kv_heads to one of {_divisors(heads)}"
        )
    if "head_dim" not in values or (config.head_dim is None and (config.width or config.heads)):
        if width % heads:
            raise MeshkitError(
                f"model.width = {width} does not split into model.heads = {heads} heads: set model.head_dim, "
                f"or model.heads to one of {_divisors(width)}"
            )
        values["head_dim"] = width // heads
    odd = values["head_dim"]
    if values["family"] in STYLES and odd % 2:
        raise MeshkitError(
            f"model.head_dim = {odd} is odd and rotary positions turn pairs: set it to {odd - 1 or 2} or {odd + 1}"
        )
    values["options"] = values.get("options", {}) | config.options
    found = Sizes(**values)
    # What these refuse is said here.
    _ = found.adapters
    if found.family in FAMILIES:
        checked(found.family, found.base.options)
    if found.family in STYLES:
        _ = found.style
    return found


def _base(config: ModelConfig, vocab: int | None) -> dict:
    """What stands under the config's own sizes."""
    if config.init_from is not None:
        from meshkit.models.config_json import sizes_in

        return vars(sizes_in(config.init_from))
    name = config.preset.lower()
    if name not in PRESETS:
        raise MeshkitError(f"model.preset = {config.preset!r}: no such preset; {nearest(name, PRESETS)}")
    return PRESETS[name] | ({"vocab": vocab} if vocab else {})


def check_cut(sizes: Sizes, mesh: MeshShape, sequence: int) -> None:
    """Raises MeshkitError, with the fixes, when a size does not divide over the mesh."""
    tensor = mesh.tensor
    if sequence > sizes.context:
        raise MeshkitError(
            f"data.sequence = {sequence} exceeds model.context = {sizes.context}: lower the one or raise the other"
        )
    experts = sizes.style.experts if sizes.family in STYLES else 0
    cut = {
        "model.heads": sizes.heads,
        "model.kv_heads": sizes.kv_heads,
        **({"model.options.experts": experts} if experts else {"model.mlp_width": sizes.mlp_width}),
        "data.sequence": sequence,
    }
    for key, value in cut.items():
        if value % tensor:
            near = _nearest_that_splits(key, value, sizes, tensor)
            raise MeshkitError(
                f"{key} = {value} does not split into mesh.tensor = {tensor} equal parts: set mesh.tensor to one of "
                f"{_divisors(math.gcd(*cut.values()))}" + (f"; or {key} to {near}" if near else "")
            )


def _nearest_that_splits(key: str, value: int, sizes: Sizes, tensor: int) -> int | None:
    """The multiple of `tensor` nearest to `value` that goes together with the other sizes."""
    most, fits = {
        "model.heads": (sizes.width, lambda n: n % sizes.kv_heads == 0 and sizes.width % (2 * n) == 0),
        "model.kv_heads": (sizes.heads, lambda n: sizes.heads % n == 0),
        "model.mlp_width": (value + tensor, lambda n: True),
        "model.options.experts": (value + tensor, lambda n: True),
        "data.sequence": (sizes.context, lambda n: True),
    }[key]
    return min(filter(fits, range(tensor, most + 1, tensor)), key=lambda n: abs(n - value), default=None)


def _divisors(n: int) -> str:
    return ", ".join(str(k) for k in range(1, n + 1) if n % k == 0)
