"""RunConfig: everything that a run can be told, typed, and how it is read.

One reading order everywhere: defaults < TOML file < overrides. No JAX here: a config is checked
on a laptop before any device is touched; what depends on devices is checked in `mesh.py`.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from meshkit.data.paths import TokenPaths
from meshkit.errors import MeshkitError
from meshkit.reading import explain, holds, merge, nested, number, read_toml

AxisSize = Annotated[int, Field(ge=-1)]
Positive = Annotated[int, Field(ge=1)]
AUTO, NEVER = "auto", "never"  # of `resume`
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(pydantic.BaseModel):
    """A table of the config: immutable, and no key passes unread."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False
    )


class MeshShape(Section):
    """How many ways each kind of parallelism cuts the work: data × tensor × pipe devices."""

    data: AxisSize = Field(-1, description="Replicas, each with its own slice of the batch; -1: the rest.")
    tensor: AxisSize = Field(1, description="Devices that share each weight matrix; -1: the rest.")
    pipe: AxisSize = Field(1, description="Pipeline stages, consecutive groups of layers; -1: the rest.")

    @model_validator(mode="after")
    def _one_free_axis(self) -> Self:
        free = [name for name, size in self.sizes.items() if size == -1]
        if len(free) > 1:
            raise ValueError(f"only one axis can be -1 (the rest of the devices), not {' and '.join(free)}")
        for name, size in self.sizes.items():
            if size == 0:
                raise ValueError(f"mesh.{name} = 0: an axis has at least 1 device, or -1 for the rest")
        return self

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name -> size, in the order of the mesh's axes."""
        return {"data": self.data, "tensor": self.tensor, "pipe": self.pipe}

    @property
    def devices(self) -> int:
        """Devices the mesh takes, once no axis is -1."""
        return self.data * self.tensor * self.pipe

    def __str__(self) -> str:
        return f"data {self.data} × tensor {self.tensor} × pipe {self.pipe}"


class PipelineConfig(Section):
    """How a batch flows through the stages."""

    schedule: str = Field(
        "1f1b", description="Order of the work: gpipe, 1f1b, interleaved, zero-bubble, or a file with a grid (.txt)."
    )
    microbatches: Positive = Field(
        1, description="Slices of a replica's batch that follow each other through the stages."
    )
    virtual: Positive = Field(1, description="Chunks of layers a stage holds (v), for the interleaved schedule.")
    layers_per_stage: list[int] | None = Field(
        None, description="Layers of each stage (of each chunk: P·v), as [3, 1, 1]; absent: balanced."
    )
    overlap: bool = Field(False, description="Give a hop between stages a whole tick, to hide it behind compute.")
    unroll: Positive = Field(
        1, description="Layers unrolled in one trip of the layer loop: faster on CPU, slower to compile."
    )


class RopeScaling(Section):
    """Llama 3's stretching of the rotary frequencies, for contexts longer than trained on."""

    factor: float = Field(8.0, gt=0, description="How many times longer the context became.")
    low: float = Field(1.0, gt=0, description="Wavelengths over original / low are stretched fully.")
    high: float = Field(4.0, gt=0, description="Wavelengths under original / high are left alone.")
    original: Positive = Field(8192, description="Context length of the first training.")

    @model_validator(mode="after")
    def _a_band_between(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be less than high = {self.high}")
        return self


class ModelConfig(Section):
    """Which Transformer. `preset` fills every size that is not given here."""

    preset: str = Field("tiny", description="A named set of sizes: tiny, gpt2, llama3-8b, llama3-70b and so on.")
    init_from: str | None = Field(
        None,
        description="Weights to begin with, which say the sizes: a published (Hugging Face) folder or a checkpoint.",
    )
    family: str | None = Field(
        None, description="llama, mistral, qwen3, gemma2, gpt2 and so on, or your own model as 'package.module:Class'."
    )
    layers: Positive | None = Field(None, description="Transformer blocks.")
    width: Positive | None = Field(None, description="Features of the residual stream.")
    heads: Positive | None = Field(None, description="Query heads.")
    kv_heads: Positive | None = Field(None, description="Key/value heads; fewer than heads: grouped-query attention.")
    head_dim: Positive | None = Field(None, description="Features of a head; default width / heads.")
    mlp_width: Positive | None = Field(None, description="Hidden features of the MLP.")
    vocab: Positive | None = Field(None, description="Tokens of the vocabulary; default the data's.")
    context: Positive | None = Field(None, description="Longest sequence (learned positions end there).")
    tied: bool | None = Field(None, description="Use the embedding's table as the head too.")
    rope_theta: float | None = Field(None, gt=0, description="Base of the rotary frequencies.")
    rope_scaling: RopeScaling | None = Field(
        None, description="Llama 3's scaling of rotary frequencies: factor, low, high, original."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="Share of features dropped in training."
    )
    options: dict[str, Any] = Field(
        {}, description="What a family has besides (window, experts, lora and so on), or settings of your own model."
    )


class OptimizerConfig(Section):
    """The Optax update and its learning rate over time."""

    name: Literal["adamw", "lion", "adafactor", "muon", "sgd"] = Field("adamw", description="Update rule, from Optax.")
    learning_rate: float = Field(3e-4, gt=0, description="Peak learning rate.")
    schedule: Literal["cosine", "linear", "constant", "wsd"] = Field("cosine", description="Course after the warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear rise from 0 to the peak.")
    decay_steps: int | None = Field(None, ge=1, description="Steps of wsd's final decay; default a fifth of the run.")
    final_scale: float = Field(0.1, ge=0, le=1, description="Last learning rate as a share of the peak.")
    weight_decay: float = Field(0.1, ge=0, description="Decoupled decay of matrices (norms, biases are spared).")
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        [0.9, 0.95], description="Decay of the first moment (momentum of sgd and muon) and of the second."
    )
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    clip_norm: float = Field(1.0, ge=0, description="Largest global norm of the gradients; 0: any.")


class DataConfig(Section):
    """Where tokens come from and how they are batched."""

    tokens: TokenPaths = Field(
        None, description="A prepared folder or Megatron prefix; a list of them: as one; {path = weight}: a mixture."
    )
    text: list[str] = Field(
        [], description="Text files, folders or globs, prepared at start; {stdlib}: Python's sources."
    )
    tokenizer: str | None = Field(None, description="A tokenizer.json for `text`; absent: one token a byte.")
    dataset: str | None = Field(None, description="Your own data set as 'package.module:callable'.")
    sequence: Positive = Field(128, description="Tokens of a training sample.")
    batch: Positive = Field(8, description="Samples of one step over all replicas (the global batch).")
    documents: Literal["joined", "apart"] = Field(
        "joined", description="Of one sample: attention and positions go on through them, or stay inside each (apart)."
    )
    held_out: float = Field(0.05, gt=0, lt=1, description="Share of text or Megatron's files kept for evaluation.")


class CheckpointConfig(Section):
    """When the state of a run is saved, where to, and which of the saved stay."""

    folder: str | None = Field(None, description="Folder, or bucket (gs://…), of the checkpoints; absent: in run_dir.")
    every: list[str] = Field(
        ["30 min"], description="When to save, besides the end and a SIGTERM: 'N steps', 'N min', or both."
    )
    keep: list[str] = Field(
        ["last 2"], description="Which stay: 'last N', 'best N' by held-out loss, 'every N' steps; all that apply."
    )

    @property
    def periods(self) -> dict[str, int]:
        """Unit of `every` -> how many of it lie between two saves."""
        return _counted("every", self.every, r"(?P<count>\d+) (?P<word>steps|min)", "'500 steps' or '30 min'")

    @property
    def kept(self) -> dict[str, int]:
        """Word of `keep` -> its number."""
        return _counted(
            "keep", self.keep, r"(?P<word>last|best|every) (?P<count>\d+)", "'last 2', 'best 1', 'every 5000'"
        )

    @model_validator(mode="after")
    def _understood(self) -> Self:
        _ = self.periods, self.kept
        return self


def _counted(key: str, entries: list[str], form: str, examples: str) -> dict[str, int]:
    """Word -> count, of entries like '500 steps'; ValueError for another form, a count of 0, a word given twice."""
    found = {}
    for entry in entries:
        match = re.fullmatch(form, entry)
        if match is None or not int(match["count"]) or match["word"] in found:
            raise ValueError(f"checkpoint.{key} = {entry!r}: each entry once, and written as {examples}")
        found[match["word"]] = int(match["count"])
    return found


class RunConfig(Section):
    """One training run."""

    steps: Positive = Field(100, description="Optimizer steps.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of parameters, dropout and data order.")
    run_dir: str = Field(
        "runs/run", min_length=1, description="Folder of the run's files; a run that is there goes on (see resume)."
    )
    resume: str = Field(
        "auto",
        description="auto: go on from run_dir's checkpoints; never: in a numbered neighbour; or a checkpoint's path.",
    )
    devices: Positive | None = Field(None, description="Simulate this many CPU devices.")
    precision: Literal["bfloat16", "float32", "float64"] = Field(
        "bfloat16", description="Dtype of the forward and backward."
    )
    zero: Annotated[Literal[0, 1, 2, 3], BeforeValidator(number)] = Field(
        1, description="ZeRO level: 1 cuts moments over data, 2 gradients too, 3 weights too."
    )
    recompute: Literal["full", "selective", "none"] = Field(
        "full", description="Keep for the backward: stage inputs (full), products (selective) or all (none)."
    )
    offload: bool = Field(False, description="Keep what forwards leave for backwards in host memory; on CPU it is one.")
    grad_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Dtype of accumulated gradients; bfloat16 halves them and rounds each sum."
    )
    loss: str = Field(
        "cross_entropy", description="cross_entropy, or your own per-token loss as 'package.module:function'."
    )
    evaluate_every: int = Field(0, ge=0, description="Steps between evaluations on held-out data; 0: at the end only.")
    log_every: Positive = Field(10, description="Steps between logged metrics.")
    mesh: MeshShape = Field(MeshShape(), description="Shape of the device mesh.")
    pipeline: PipelineConfig = Field(PipelineConfig(), description="Schedule and microbatches.")
    model: ModelConfig = Field(ModelConfig(), description="The Transformer.")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="The update.")
    data: DataConfig = Field(DataConfig(), description="The tokens.")
    checkpoint: CheckpointConfig = Field(CheckpointConfig(), description="Saving.")

    def microbatch_size(self, data: int) -> int:
        """Samples of one microbatch on one of `data` replicas.

        Raises MeshkitError when the global batch does not split evenly.
        """
        batch, m = self.data.batch, self.pipeline.microbatches
        if batch % (data * m):
            low, high = batch // (data * m) * data * m, -(-batch // (data * m)) * data * m
            fits = [k for k in range(1, batch + 1) if batch % (data * k) == 0]
            raise MeshkitError(
                f"data.batch = {batch} does not split into mesh.data = {data} replicas × "
                f"pipeline.microbatches = {m} microbatches of equal size: set data.batch to "
                f"{' or '.join(str(b) for b in (low, high) if b)}"
                + (f", or pipeline.microbatches to {', '.join(map(str, fits))}" if fits else "")
            )
        return batch // (data * m)


def load(
    config: "str | os.PathLike[str] | Mapping[str, Any] | RunConfig", overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """The typed config from a TOML file, a mapping or a RunConfig, with `overrides` on top.

    Overrides are nested mappings or dotted keys: `{"mesh.data": 2}`, `{"mesh": {"data": 2}}`.
    Raises MeshkitError that names the key, the value, the rule and the nearest known key.
    """
    source, over = "the config", nested(overrides or {})
    if isinstance(config, RunConfig):
        values: dict[str, Any] = config.model_dump(exclude_unset=True)
    elif isinstance(config, Mapping):
        values = nested(config)
    elif isinstance(config, str | os.PathLike):
        source, values = str(config), read_toml(Path(config))
    else:
        raise MeshkitError(f"config = {config!r}: it must be the path of a TOML file, a mapping or a RunConfig")
    try:
        return RunConfig.model_validate(merge(values, over))
    except pydantic.ValidationError as error:
        known = RunConfig.model_fields | keys() | keys(RopeScaling, "model.rope_scaling.")
        where = lambda item: "an override" if holds(over, item["loc"]) else source
        raise MeshkitError("\n".join(explain(item, where(item), known) for item in error.errors())) from None


def keys(section: type[Section] = RunConfig, prefix: str = "") -> dict[str, FieldInfo]:
    """Every leaf key of the config, dotted -> its field (annotation, default, description)."""
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found.update(keys(field.annotation, f"{prefix}{name}."))
        else:
            found[prefix + name] = field
    return found
