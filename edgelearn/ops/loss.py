"""Base of the losses, the losses of several outputs, and the count of losses and right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .constants import Counter
from .emit import Answers, Control, Emitter
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Loss:
    """Base of the losses: functions of a micro-batch's outputs (n, ..., outputs) and targets.

    Outputs are seen as rows, one for each example, or for each pixel of one. A loss gives a number for each row. The
    loss of a mini-batch is the mean over its examples, and over the rows of each (Keras's `sum_over_batch_size`); with
    weights, that of weight times loss, which isn't divided by the sum of the weights. So the shares of micro-batches
    add up to the mini-batch.

    - `target_dtype`: targets are "int32", a class number for each row, or "float32", a value for each output.
    - `head`: name of the op at the network's end that the loss computes itself, so that it is left out; else "".
    - `accuracy`: what is right or wrong: "rows", "values" of a row, or "" if nothing is.
    - `takes_weights`: its kernel multiplies each row by `control.weights`.
    - `ordered`: the role of an example depends on its place in the micro-batch, so examples are not shuffled and all
      micro-batches have one size.
    """

    target_dtype: ClassVar[str] = "int32"
    head: ClassVar[str] = "Softmax"
    accuracy: ClassVar[str] = "rows"
    takes_weights: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    kernel: ClassVar[tuple[str, str]]  # source and name of a kernel for `emit_rows`

    @property
    def settings(self) -> tuple[float, ...]:
        """Numbers that the kernel takes."""
        return astuple(self)

    @property
    def macros(self) -> dict[str, int]:
        """Macros that it is compiled with."""
        return {}

    def check(self, shape: Shape, examples: int) -> None:
        """Raises PlanError if the loss doesn't fit an output of this shape, without the batch, or micro-batches of this
        size."""

    def fits(self, examples: int) -> bool:
        """True if the loss is defined for this number of examples."""
        return True

    def labels(self, outputs: int) -> range:
        """The valid class numbers."""
        return range(outputs)

    def arranged(self, labels: np.ndarray, shape: Shape) -> np.ndarray:
        """Class numbers in the shape (examples, *rows) that the kernel reads, from those that a user gives (default:
        as they are). `shape`: of the output, without the batch. Raises PlanError for labels that have no loss."""
        return labels

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(loss of each row, gradient of their mean to the outputs), in the outputs' own precision. Outputs are
        (rows, outputs)."""
        raise NotImplementedError

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        """Emit the loss and the right answers of each row, and `gradient`, that of the outputs, if it is given.
        Default: by the `kernel` with its `settings` and `macros`."""
        return self.emit_rows(*self.kernel, e, outputs, control, gradient, *self.settings, **self.macros)

    def emit_rows(
        self, source: str, kernel: str, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None,
        *settings: float, **macros: int,
    ) -> Answers:  # fmt: skip
        """Emit a kernel that has a work-group for each row: see kernels/include/logits.h for its arguments, which
        `settings` follow."""
        rows = outputs.rows
        answers = Answers(e.tensor("losses", (1, rows)), e.tensor("right", (1, rows)))
        weights = [control.weights.read] if control.weights is not None else []
        more = [control.scalars.read, gradient.write] if gradient is not None else []
        e.launch(
            source, kernel, (rows * e.traits.group,), outputs.read, control.targets.read, *weights,
            answers.losses.write, answers.right.write, rows, outputs.channels, *map(float, settings), *more,
            whole=True, gradient=gradient is not None, weighted=control.weights is not None, **macros,
        )  # fmt: skip
        return answers


@dataclass(frozen=True)
class Losses:
    """The losses of a network's outputs. Training minimizes their weighted sum.

    Arguments:
    - `by_output`: a Loss for each output that has one, by its name.
    - `weights`: factors in the sum, by output (default 1 each).

    Raises PlanError for something else than losses, or for weights that aren't numbers of at least 0.
    """

    by_output: Mapping[str, Loss]
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, loss in self.by_output.items():
            if not isinstance(loss, Loss):
                raise PlanError(
                    f"The loss of '{name}' is an object such as SoftmaxCrossEntropy() or MeanSquaredError(), not "
                    f"{loss!r:.60}."
                )
        for name, weight in self.weights.items():
            if name not in self.by_output or not weight >= 0:
                raise PlanError(
                    f"loss_weights are numbers of at least 0 for {', '.join(self.by_output)}, got {weight!r} for "
                    f"'{name}'."
                )

    def check(self, shapes: Mapping[str, Shape], examples: int) -> None:
        """Raises PlanError if a loss doesn't fit the shape of its output, or micro-batches of this size."""
        for name, loss in self.by_output.items():
            loss.check(shapes[name], examples)

    def weight(self, output: str) -> float:
        return float(self.weights.get(output, 1.0))

    @property
    def ordered(self) -> bool:
        return any(loss.ordered for loss in self.by_output.values())

    def fits(self, examples: int) -> bool:
        return all(loss.fits(examples) for loss in self.by_output.values())


def rows_of(shape: Shape) -> int:
    """Rows of an example whose output has this shape."""
    return prod(shape[:-1])


def emit_count(e: Emitter, answers: Sequence[Answers], control: Control, n: int, weights: Sequence[float] = ()) -> None:
    """Emit the count of a micro-batch's `n` examples, and of the losses and right answers of each output. It comes
    last, since random numbers depend on the count of examples: forward, backward and recomputation must draw the same
    ones. `weights`: of the outputs' losses, if there are several."""
    for number, answer in enumerate(answers):
        rows, is_last = answer.losses.channels, number == len(answers) - 1
        place = Counter.OUTPUTS + 2 * number if len(answers) > 1 else 0
        e.launch(
            "softmax_cross_entropy.cl", "count_examples", (1,), answer.losses.read, answer.right.read,
            control.counters.update, rows, n if is_last else 0, n / rows, float(weights[number] if weights else 1.0),
            place, whole=True, gradient=False,
        )  # fmt: skip
