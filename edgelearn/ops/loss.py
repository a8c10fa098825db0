"""What training minimises, as data: a choice of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .control import Answers, Control
from .emit import Emitter
from .tensor import Tensor


@dataclass(frozen=True)
class Loss:
    """Base of the losses: of the network's outputs (n, outputs) for a micro-batch, and its int labels (n,).

    `takes_logits`: a softmax at the network's end is left out, since the loss has its own. `ordered`: what an example
    is for depends on its place in the micro-batch, so that these aren't shuffled and are all of one size."""

    takes_logits: ClassVar[bool] = True
    ordered: ClassVar[bool] = False

    def check(self, outputs: int, examples: int) -> None:
        """Raises PlanError for a network with so many outputs, or micro-batches of so many examples, that don't fit."""

    def fits(self, examples: int) -> bool:
        """Whether the loss of so many examples can be told; a number of its own for each, unless said otherwise."""
        return True

    def labels(self, outputs: int) -> range:
        """Which labels there are."""
        return range(outputs)

    def reference(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(loss of each example, gradient of their mean to the outputs), in the outputs' own precision."""
        raise NotImplementedError

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        """Losses and right answers, for `emit_count`; and the outputs' gradient where one is wanted."""
        raise NotImplementedError


def emit_count(e: Emitter, answers: Answers, control: Control) -> None:
    """Count a micro-batch's losses, right answers and examples. Random numbers are drawn by the example's place in the
    mini-batch, so this comes last: whatever runs before, forward, backward or once more, draws the same."""
    e.launch(
        "softmax_cross_entropy.cl", "count_examples", (1,), answers.losses.read, answers.right.read,
        control.counters.update, answers.losses.channels, whole=True, gradient=False,
    )  # fmt: skip
