"""Losses, and counting their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .control import Answers, Control
from .emit import Emitter
from .tensor import Tensor


@dataclass(frozen=True)
class Loss:
    """Base of the losses: functions of a micro-batch's outputs (n, outputs) and int labels (n,).

    - `takes_logits`: the loss has its own softmax, so one at the network's end is left out.
    - `ordered`: the role of an example depends on its place in the micro-batch, so examples are not shuffled and all
      micro-batches have one size.
    """

    takes_logits: ClassVar[bool] = True
    ordered: ClassVar[bool] = False

    def check(self, outputs: int, examples: int) -> None:
        """Raises PlanError if the loss doesn't fit a network with this number of outputs or micro-batches of this
        size."""

    def fits(self, examples: int) -> bool:
        """True if the loss is defined for this number of examples."""
        return True

    def labels(self, outputs: int) -> range:
        """The valid labels."""
        return range(outputs)

    def reference(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(loss of each example, gradient of their mean to the outputs), in the outputs' own precision."""
        raise NotImplementedError

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        """Emit the loss and the right answers of each example, and `gradient`, that of the outputs, if it is given."""
        raise NotImplementedError


def emit_count(e: Emitter, answers: Answers, control: Control) -> None:
    """Emit the count of a micro-batch's losses, right answers and examples. It comes last, since random numbers depend
    on the count of examples: forward, backward and recomputation must draw the same ones."""
    e.launch(
        "softmax_cross_entropy.cl", "count_examples", (1,), answers.losses.read, answers.right.read,
        control.counters.update, answers.losses.channels, whole=True, gradient=False,
    )  # fmt: skip
