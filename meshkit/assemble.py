"""From a config, checked against a mesh, to the train step: the one place where the parts are joined."""

from typing import Any

from jax.sharding import Mesh

from meshkit import optimizer
from meshkit.config import MeshShape, RunConfig
from meshkit.errors import MeshkitError
from meshkit.imports import load_object
from meshkit.mesh import AXES
from meshkit.models.build import builder
from meshkit.models.presets import Sizes, check_cut, sizes
from meshkit.pipeline import builders, protocol
from meshkit.pipeline.placement import place
from meshkit.pipeline.stage import functional
from meshkit.pipeline.vocab import TokenLoss
from meshkit.train_step import TrainStep, vocab_multiple

CROSS_ENTROPY = "cross_entropy"


def train_step(
    config: RunConfig, mesh: Mesh, vocab: int | None = None, model: Any = None, loss: TokenLoss | None = None
) -> TrainStep:
    """The TrainStep of `config` on `mesh`.

    vocab: the data's vocabulary, taken when neither `model.vocab` nor the user gave one. model: a class
    called as model(sizes, rngs, vocab_multiple), instead of `model.family`. loss: instead of `loss`.
    Raises MeshkitError when something does not divide, fit or exist, with the choices that do.
    """
    shape = MeshShape(**{axis: mesh.shape[axis] for axis in AXES})
    chosen = model_sizes(config, vocab)
    check_cut(chosen, shape, config.data.sequence)
    config.microbatch_size(shape.data)
    build = builder(chosen, vocab_multiple(mesh), model)
    if loss is None and config.loss != CROSS_ENTROPY:
        loss = load_object(config.loss, "loss", [CROSS_ENTROPY])
    config = config.model_copy(update={"mesh": shape})
    pipeline = config.pipeline
    placement = place(chosen.layers, shape.pipe, pipeline.virtual, pipeline.layers_per_stage)
    step = TrainStep(config, mesh, functional(build, placement), build, loss)
    # What these refuse is said here, before anything is compiled or written.
    builders.from_config(pipeline, shape.pipe)
    optimizer.learning_rate(config.optimizer, config.steps)
    protocol.check_flow(step.stages, step.dtype, config.data.sequence, config.data.documents == "apart")
    if loss is not None:
        protocol.check_loss(loss, step.stages.vocab, step.wide, config.data.sequence)
    return step


def model_sizes(config: RunConfig, vocab: int | None) -> Sizes:
    """The model's sizes; MeshkitError when the data's ids (below `vocab`) exceed its vocabulary."""
    chosen = sizes(config.model, vocab)
    if vocab is not None and vocab > chosen.vocab:
        raise MeshkitError(
            f"model.vocab = {chosen.vocab} and the data's ids go up to {vocab - 1}: set it to {vocab} or more"
        )
    return chosen
