"""What the steps of a run say of themselves: gradients that are not finite, batches without a target."""

from collections.abc import Callable, Iterable, Mapping

from meshkit.config import OptimizerConfig
from meshkit.errors import MeshkitError, counted

MAX_SKIPPED = 5
"""Steps in a row with gradients that are not finite, after which a run stops."""


class Health:
    """Told of every step in turn, it says what is wrong with them, and stops a run that learns nothing.

    history: records of the steps before, of a run that goes on. note: shows the user a sentence.
    """

    def __init__(
        self, optimizer: OptimizerConfig, history: Iterable[Mapping[str, float]], note: Callable[[str], None]
    ) -> None:
        self._optimizer, self._note = optimizer, note
        self._taught = any(record["target_tokens"] for record in history)
        self._empty = 0  # steps without a target that were not told of yet

    def step(self, number: int, values: dict[str, float]) -> None:
        """Take in a step's metrics, `skipped` out of them. Raises MeshkitError at the MAX_SKIPPED-th in a row."""
        skipped = values.pop("skipped")
        if skipped >= MAX_SKIPPED:
            raise MeshkitError(
                f"step {number}: {MAX_SKIPPED} steps in a row had gradients that are not finite (loss "
                f"{values['loss']}, gradient norm {values['grad_norm']}): lower optimizer.learning_rate = "
                f"{self._optimizer.learning_rate}, raise optimizer.warmup_steps, or look at the data"
            )
        if skipped:
            self._note(f"step {number} is skipped, its gradients are not finite: {int(values['skipped_total'])} so far")
        self._taught |= values["target_tokens"] > 0
        self._empty += not values["target_tokens"]

    def tell(self, number: int) -> None:
        """Say how many steps had no target since the last time."""
        if self._empty:
            self._note(
                f"warning: up to step {number}, {counted(self._empty, 'step')} had no target, all weights are 0: "
                "nothing was learned there"
            )
        self._empty = 0

    def end(self, number: int) -> None:
        """Raises MeshkitError at the end of a run none of whose `number` steps had a target."""
        if not self._taught:
            raise MeshkitError(
                f"none of the {number} steps had a target, the weights of the data are all 0: nothing was learned, and "
                "nothing is saved: look at the data"
            )
