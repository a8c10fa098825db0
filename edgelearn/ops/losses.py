"""Losses: functions of outputs and targets with a float64 reference, and the launches that compute them and their
gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import OUTPUTS, Answers, Control, Emitter
from .tensor import BLOCK, Shape, Tensor

__all__ = [
    "LOSSES", "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy", "CodewordHinge", "Huber", "Loss", "Losses", "MeanAbsoluteError",
    "MeanSquaredError", "MinimumEntropy", "PositiveHinge", "Prototypical", "SoftmaxCrossEntropy",
]  # fmt: skip


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

    def check(self, shape: Shape, examples: int) -> None:
        """Raises PlanError if the loss doesn't fit an output of this shape, without the batch, or micro-batches of this
        size."""

    def fits(self, examples: int) -> bool:
        """True if the loss is defined for this number of examples."""
        return True

    def labels(self, outputs: int) -> range:
        """The valid class numbers."""
        return range(outputs)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(loss of each row, gradient of their mean to the outputs), in the outputs' own precision. Outputs are
        (rows, outputs)."""
        raise NotImplementedError

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        """Emit the loss and the right answers of each row, and `gradient`, that of the outputs, if it is given."""
        raise NotImplementedError

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
        place = OUTPUTS + 2 * number if len(answers) > 1 else 0
        e.launch(
            "softmax_cross_entropy.cl", "count_examples", (1,), answer.losses.read, answer.right.read,
            control.counters.update, rows, n if is_last else 0, n / rows, float(weights[number] if weights else 1.0),
            place, whole=True, gradient=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Softmax(Op):
    """Probabilities over the last axis. As a network's last layer it is trained together with the cross-entropy."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        shifted = np.exp(inputs[0] - inputs[0].max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        p = self.reference_forward(inputs, weights)
        return [p * (dy - (p * dy).sum(-1, keepdims=True))], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "softmax_cross_entropy.cl", "softmax", (x.rows * e.traits.group,), x.read, y.write, x.rows, x.channels,
            whole=True, gradient=False,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        target = only(targets)
        e.launch(
            "softmax.cl", "softmax_backward", (y.rows * e.traits.members,), y.read, dy.read, y.rows, y.blocks,
            *target.arguments, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class LogSoftmax(Op):
    """Logarithms of probabilities over the last axis, finite where a probability is too small for a float: the largest
    input is subtracted first. As a network's last layer it is trained together with the cross-entropy, as Softmax
    is."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        shifted = inputs[0] - inputs[0].max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy - Softmax().reference_forward(inputs, weights) * dy.sum(-1, keepdims=True)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        e.launch(
            "softmax_cross_entropy.cl", "softmax", (x.rows * e.traits.group,), x.read, y.write, x.rows, x.channels,
            whole=True, gradient=False, logarithm=True,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        target, padded = only(targets), y.channels % y.block != 0
        e.launch(
            "softmax.cl", "log_softmax_backward", (y.rows * e.traits.members,), y.read, dy.read, y.rows, y.blocks,
            *((y.channels,) if padded else ()), *target.arguments, padded=padded, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Softmax and cross-entropy on class numbers: -sum target log softmax(outputs), with target = (1 - label_smoothing)
    one-hot + label_smoothing / classes (Szegedy et al. 2016, section 7).

    Targets are int (n,), or (n, height, width) for a network that gives classes for each pixel. A Softmax at the
    network's end belongs to the loss; outputs of a network without one are logits. Keras's
    SparseCategoricalCrossentropy.

    Arguments:
    - `label_smoothing`: share of the label given to all classes, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise PlanError(f"label_smoothing is at least 0 and below 1 (usual is 0.1), not {self.label_smoothing}.")

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, classes = outputs.shape
        target = np.full_like(outputs, self.label_smoothing / classes)
        target[np.arange(n), targets] += 1 - self.label_smoothing
        p, log_p = (op.reference_forward([outputs], {}) for op in (Softmax(), LogSoftmax()))
        return -(target * log_p).sum(-1), (p - target) / n

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows(
            "softmax_cross_entropy.cl", "softmax_cross_entropy", e, outputs, control, gradient, self.label_smoothing
        )


@dataclass(frozen=True)
class MinimumEntropy(Loss):
    """Cross-entropy of labelled examples; for unlabelled ones, with label -1, `weight` times the entropy of the
    predicted probabilities (Grandvalet and Bengio 2004).

    With unlabelled examples only, batch statistics and only BatchNorm's gamma and beta trained, this is TENT (Wang et
    al. 2021). The accuracy counts unlabelled examples as wrong.

    Arguments:
    - `weight`: of unlabelled examples (default 1).

    Raises PlanError for a negative weight.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise PlanError(f"The weight of unlabelled examples is at least 0 (usual is up to 1), not {self.weight}.")

    def labels(self, outputs: int) -> range:
        return range(-1, outputs)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(outputs)
        shifted = outputs - outputs.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        p = np.exp(log_p)
        entropy = -(p * log_p).sum(-1)
        unlabelled = targets < 0
        gradient = p.copy()
        gradient[np.arange(n), targets] -= 1
        gradient[unlabelled] = (-self.weight * p * (log_p + entropy[:, None]))[unlabelled]
        return np.where(unlabelled, self.weight * entropy, -log_p[np.arange(n), targets]), gradient / n

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows("minimum_entropy.cl", "minimum_entropy", e, outputs, control, gradient, self.weight)


@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Sigmoid and cross-entropy of each output: the mean of -y log p - (1 - y) log(1 - p), with p = sigmoid(output).

    Targets are 0 to 1 in the shape of the outputs. A Sigmoid at the network's end belongs to the loss; outputs of a
    network without one are logits. The accuracy is the share of outputs on the target's side of 1/2.

    Arguments:
    - `label_smoothing`: share of each target replaced by 1/2, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = "Sigmoid"
    accuracy: ClassVar[str] = "values"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = np.maximum(outputs, 0) - outputs * y + np.log1p(np.exp(-np.abs(outputs)))
        return losses.mean(-1), (_sigmoid(outputs) - y) / outputs.size

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, 0.0, -1.0
        return self.emit_rows(*BINARY, e, outputs, control, gradient, *settings, focal=False)


@dataclass(frozen=True)
class BinaryFocalCrossentropy(BinaryCrossentropy):
    """BinaryCrossentropy, each term times (1 - p_t)^gamma, where p_t is the probability of what is right: easy examples
    count less (Lin et al. 2017, "Focal loss for dense object detection").

    Targets and outputs as BinaryCrossentropy.

    Arguments:
    - `label_smoothing`: as BinaryCrossentropy (default 0).
    - `gamma`: exponent, at least 0 (default 2).
    - `alpha`: weight of targets 1, from 0 to 1; targets 0 have 1 - alpha (default None: both 1). The paper's is 0.25,
      which is Keras's `apply_class_balancing=True`.

    Raises PlanError for values out of range.
    """

    gamma: float = 2.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise PlanError(f"alpha is from 0 to 1 (usual is 0.25), or None, not {self.alpha}.")

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, (p, not_p) = targets * (1 - self.label_smoothing) + self.label_smoothing / 2, _both(outputs)
        loss = np.maximum(outputs, 0) - outputs * y + np.log1p(np.exp(-np.abs(outputs)))
        wrong = y * not_p + (1 - y) * p
        balance = 1.0 if self.alpha is None else y * self.alpha + (1 - y) * (1 - self.alpha)
        bend = self.gamma * wrong ** (self.gamma - 1) * (1 - 2 * y) * p * not_p
        slope = balance * (bend * loss + wrong**self.gamma * (p - y))
        return (balance * wrong**self.gamma * loss).mean(-1), slope / outputs.size

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, self.gamma, -1.0 if self.alpha is None else self.alpha
        return self.emit_rows(*BINARY, e, outputs, control, gradient, *settings, focal=True)


BINARY = "binary_cross_entropy.cl", "binary_cross_entropy"


def check_smoothing(smoothing: float) -> None:
    """Raises PlanError for a label smoothing out of range."""
    if not 0 <= smoothing < 1:
        raise PlanError(f"label_smoothing is at least 0 and below 1 (usual is 0.1), not {smoothing}.")


def check_gamma(gamma: float) -> None:
    """Raises PlanError for an exponent of a focal loss that is out of range."""
    if not gamma >= 0:
        raise PlanError(f"gamma is at least 0 (usual is 2), not {gamma}.")


def _both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sigmoid(x) and 1 - sigmoid(x), each to its own last digit."""
    e = np.exp(-np.abs(x))
    one, zero = 1 / (1 + e), e / (1 + e)
    return np.where(x >= 0, one, zero), np.where(x >= 0, zero, one)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return _both(x)[0]


@dataclass(frozen=True)
class CategoricalCrossentropy(Loss):
    """Softmax and cross-entropy on probabilities: -sum y log softmax(outputs).

    Targets are float in the shape of the outputs, at least 0: one-hot, or soft as from a teacher or MixUp. A Softmax at
    the network's end belongs to the loss; outputs of a network without one are logits. For class numbers see
    SoftmaxCrossEntropy.

    Arguments:
    - `label_smoothing`: share of the target given to all classes, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    target_dtype: ClassVar[str] = "float32"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = targets * (1 - self.label_smoothing) + self.label_smoothing / outputs.shape[-1]
        log_p = outputs - outputs.max(-1, keepdims=True)
        log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
        loss, slope = self.parts(y, log_p)
        gradient = slope - np.exp(log_p) * slope.sum(-1, keepdims=True)
        return loss.sum(-1), gradient / len(outputs)

    def parts(self, y: np.ndarray, log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(share of each class in the loss, that share's slope to log_p)."""
        return -y * log_p, -y

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, 0.0, 1.0
        return self.emit_rows(*CATEGORICAL, e, outputs, control, gradient, *settings, focal=False)


@dataclass(frozen=True)
class CategoricalFocalCrossentropy(CategoricalCrossentropy):
    """CategoricalCrossentropy, each term times alpha (1 - p)^gamma: easy examples count less (Lin et al. 2017, "Focal
    loss for dense object detection").

    Targets and outputs as CategoricalCrossentropy. For other weights of single classes see `class_weight` in Model.fit.

    Arguments:
    - `label_smoothing`: as CategoricalCrossentropy (default 0).
    - `gamma`: exponent, at least 0 (default 2).
    - `alpha`: factor of all terms, at least 0 (default 0.25).

    Raises PlanError for values out of range.
    """

    gamma: float = 2.0
    alpha: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
        if not self.alpha >= 0:
            raise PlanError(f"alpha is at least 0 (usual is 0.25), not {self.alpha}.")

    def parts(self, y: np.ndarray, log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(log_p)
        rest = 1 - p
        factor = rest**self.gamma
        with np.errstate(divide="ignore", invalid="ignore"):
            bend = np.where(rest > 0, self.gamma * rest ** (self.gamma - 1) * p * log_p, 0)
        return -self.alpha * y * factor * log_p, self.alpha * y * (bend - factor)

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        settings = self.label_smoothing, self.gamma, self.alpha
        return self.emit_rows(*CATEGORICAL, e, outputs, control, gradient, *settings, focal=True)


CATEGORICAL = "categorical_cross_entropy.cl", "categorical_cross_entropy"


SQUARED, ABSOLUTE, HUBER = range(3)  # as in kernels/regression.cl


@dataclass(frozen=True)
class RegressionLoss(Loss):
    """Base of the mean errors: targets are float, in the shape of the outputs."""

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = ""
    accuracy: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = True
    error: ClassVar[int] = SQUARED

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(error, its slope) of differences."""
        raise NotImplementedError

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        errors, slopes = self.errors(outputs - targets)
        return errors.mean(-1), slopes / slopes.size

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        delta = getattr(self, "delta", 0.0)
        return self.emit_rows("regression.cl", "regression", e, outputs, control, gradient, delta, error=self.error)


@dataclass(frozen=True)
class MeanSquaredError(RegressionLoss):
    """Mean of (output - target)²."""

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return d * d, 2 * d


@dataclass(frozen=True)
class MeanAbsoluteError(RegressionLoss):
    """Mean of |output - target|. Its slope at 0 is 0."""

    error: ClassVar[int] = ABSOLUTE

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.abs(d), np.sign(d)


@dataclass(frozen=True)
class Huber(RegressionLoss):
    """Mean of d² / 2 for differences |d| up to `delta`, and of delta (|d| - delta / 2) for larger ones (Huber 1964).

    Arguments:
    - `delta`: where the square becomes a line, above 0 (default 1).

    Raises PlanError for another delta.
    """

    error: ClassVar[int] = HUBER

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise PlanError(f"Huber's delta is above 0 (usual is 1), not {self.delta}.")

    def errors(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.abs(d)
        line = self.delta * (size - self.delta / 2)
        return np.where(size <= self.delta, d * d / 2, line), np.clip(d, -self.delta, self.delta)


SMALLEST = 1e-12  # as in kernels/cosine.cl


@dataclass(frozen=True)
class CosineHinge(Loss):
    """Base of the losses max(0, margin - cos(outputs, target)), or their square.

    Targets are float in the shape of the outputs. Their length doesn't matter, nor does that of the outputs.
    """

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = ""
    accuracy: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = True
    squared: ClassVar[bool] = False

    margin: float = 1.0

    def __post_init__(self) -> None:
        if not -1 < self.margin <= 1:
            raise PlanError(f"The margin of {type(self).__name__} is a cosine above -1 and up to 1, not {self.margin}.")

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 1:
            raise PlanError(
                f"{type(self).__name__} takes outputs (size,), but the network gives {shape}: add a Flatten."
            )

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        squares = np.square(outputs).sum(-1, keepdims=True) + SMALLEST
        lengths = np.sqrt(squares * (np.square(targets).sum(-1, keepdims=True) + SMALLEST))
        products = (outputs * targets).sum(-1, keepdims=True)
        missing = np.maximum(0, self.margin - products / lengths)
        slope = 2 * missing if self.squared else np.sign(missing)
        gradient = -slope * (targets - products / squares * outputs) / lengths / len(outputs)
        return (missing**2 if self.squared else missing)[:, 0], gradient

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows(
            "cosine.cl", "cosine_hinge", e, outputs, control, gradient, self.margin, squared=self.squared
        )


@dataclass(frozen=True)
class CodewordHinge(CosineHinge):
    """Loss of FedUV: max(0, margin - v·s(y) / c) for outputs y, scaled by s to the length √c, and a codeword v
    (Hosseini et al. 2021, "Federated learning of user verification models without sharing embeddings").

    The outputs are those of the shared matrix: the network ends in `Dense(c, use_bias=False)`. Targets are the user's
    codeword of -1 and 1, float (n, c). Since its length is √c, too, the loss is margin - cos(y, v).

    Arguments:
    - `margin`: agreement at which an example stops counting, above -1 and up to 1 (default 1, as published).

    Raises PlanError for another margin.
    """


@dataclass(frozen=True)
class PositiveHinge(CosineHinge):
    """Loss of FedAwS on positive examples alone: max(0, margin - cos(g, w))² for an embedding g and the class's
    embedding w (Yu et al. 2020, "Federated learning with only positive labels").

    Targets are w, float (n, size). Nothing in this loss keeps the w of two users apart: a server does, see
    `edgelearn.federated.verification.spread`.

    Arguments:
    - `margin`: cosine at which an example stops counting, above -1 and up to 1 (default 0.9, as published).

    Raises PlanError for another margin.
    """

    squared: ClassVar[bool] = True

    margin: float = 0.9


DISTANCES = ("euclidean", "cosine")


@dataclass(frozen=True)
class Prototypical(Loss):
    """Loss of prototypical networks (Snell et al. 2017, "Prototypical networks for few-shot learning"), with dummy
    prototypes for unknown classes (Kim et al. 2022, "Dummy prototypical networks for few-shot open-set keyword
    spotting").

    A micro-batch is an episode: first the support, `num_classes` x `shots` examples, class after class, whose labels
    are not read; then queries with labels 0 to `num_classes` - 1. A prototype is the mean of a class's embeddings. The
    loss of a query is the cross-entropy of the softmax over its similarities to the prototypes; that of the micro-batch
    is the mean over its queries.

    With dummy prototypes the network gives (1 + dummy_prototypes) times the size of an embedding: behind the embedding
    the features of dummies. These are averaged over the clips of a class, then maximised over the classes, so that
    neither number nor order of the classes matters. Queries of no class have label `num_classes`. Two things differ
    from the paper: the learned maps (its g1 and W_g) are layers before mean and maximum, and the probabilities of
    several dummies are added up, where the paper draws one with Gumbel noise.

    Arguments:
    - `num_classes`, `shots`: classes of an episode (2 or more), support examples of each (1 or more).
    - `distance`: "euclidean" (similarity: minus the squared distance) or "cosine".
    - `scale`: factor of similarities (default 1).
    - `dummy_prototypes`: their number (default 0).
    - `dummy_temperature`: similarities to dummies are scaled by scale / dummy_temperature (the paper's gamma; default
    3).
    - `open_weight`: weight of queries of no class (the paper's lambda; default 1).

    Raises PlanError for values out of range.
    """

    head: ClassVar[str] = ""
    ordered: ClassVar[bool] = True

    num_classes: int
    shots: int
    distance: str = "euclidean"
    scale: float = 1.0
    dummy_prototypes: int = 0
    dummy_temperature: float = 3.0
    open_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.num_classes < 2 or self.shots < 1 or self.dummy_prototypes < 0:
            raise PlanError(
                f"Expected num_classes >= 2, shots >= 1 and dummy_prototypes >= 0, got {self.num_classes}, "
                f"{self.shots} and {self.dummy_prototypes}."
            )
        if self.distance not in DISTANCES or not min(self.scale, self.dummy_temperature, self.open_weight) > 0:
            raise PlanError(
                f"Expected a distance of {' or '.join(DISTANCES)}, and scale, dummy_temperature and open_weight above "
                f"0, got {self.distance!r}, {self.scale}, {self.dummy_temperature} and {self.open_weight}."
            )

    @property
    def support(self) -> int:
        """The number of support examples of an episode."""
        return self.num_classes * self.shots

    def fits(self, examples: int) -> bool:
        return examples > self.support

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 1:
            raise PlanError(f"Prototypical takes embeddings (size,), but the network gives {shape}: add a Flatten.")
        (outputs,), dummies = shape, self.dummy_prototypes
        if not self.fits(examples):
            raise PlanError(
                f"A micro-batch of {examples} is no episode: {self.num_classes} classes of {self.shots} shots are "
                f"{self.support} examples, and queries come behind them. Make micro-batches whole episodes."
            )
        if outputs % (1 + dummies):
            raise PlanError(
                f"{dummies} dummy prototypes need {1 + dummies} times an embedding's size as outputs, but the network "
                f"gives {outputs}: add a Dense layer that gives {dummies} times as much, and concatenate."
            )

    def labels(self, outputs: int) -> range:
        return range(self.num_classes + (self.dummy_prototypes > 0))

    def _share(self, examples: int) -> float:
        """The weight of a query, so that the mean over all examples is the mean over queries."""
        return examples / (examples - self.support)

    def prototypes(self, support: np.ndarray) -> np.ndarray:
        """(classes + dummies, size) from a support (classes * shots, outputs)."""
        size = support.shape[1] // (1 + self.dummy_prototypes)
        means = support.reshape(self.num_classes, self.shots, -1).mean(1)
        return np.concatenate([means[:, :size], means[:, size:].max(0).reshape(self.dummy_prototypes, size)])

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, size = len(outputs), outputs.shape[1] // (1 + self.dummy_prototypes)
        p, x, label = self.prototypes(outputs[: self.support]), outputs[self.support :, :size], targets[self.support :]
        scale = np.where(np.arange(len(p)) < self.num_classes, self.scale, self.scale / self.dummy_temperature)
        if self.distance == "cosine":
            lengths, long = np.linalg.norm(x, axis=1)[:, None], np.linalg.norm(p, axis=1)
            cosine = x @ p.T / lengths / long
            logits = scale * cosine
            along, of_query, of_prototype = scale / lengths / long, -logits / lengths**2, -logits / long**2
        else:
            logits = -scale * np.square(x[:, None] - p).sum(-1)
            along = np.broadcast_to(2 * scale, logits.shape)
            of_query = of_prototype = -along
        unknown = label[:, None] >= self.num_classes
        right = np.where(unknown, np.arange(len(p)) >= self.num_classes, np.arange(len(p)) == label[:, None])
        weight = self._share(n) * np.where(unknown, self.open_weight, 1.0)
        log_p = logits - _log_sum(logits)
        log_right = _log_sum(np.where(right, log_p, -np.inf))
        slope = (np.exp(log_p) - np.where(right, np.exp(log_p - log_right), 0)) * weight / n

        gradient = np.zeros_like(outputs)
        gradient[self.support :, :size] = slope * along @ p + (slope * of_query).sum(1)[:, None] * x
        dp = (slope * along).T @ x + (slope * of_prototype).sum(0)[:, None] * p
        means = outputs[: self.support].reshape(self.num_classes, self.shots, -1).mean(1)
        dmeans = np.zeros_like(means)
        dmeans[:, :size] = dp[: self.num_classes]
        dummy = np.arange(size, means.shape[1])
        dmeans[means[:, size:].argmax(0), dummy] = dp[self.num_classes :].ravel()
        gradient[: self.support] = np.repeat(dmeans, self.shots, axis=0) / self.shots
        return np.concatenate([np.zeros(self.support), (-weight * log_right)[:, 0]]), gradient

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        n, size, group = outputs.rows, outputs.channels // (1 + self.dummy_prototypes), e.traits.group
        count = self.num_classes + self.dummy_prototypes
        episode = {"ways": self.num_classes, "shots": self.shots, "dummies": self.dummy_prototypes}
        p = e.tensor("prototypes", (count, size))
        slopes = e.tensor("slopes", (n - self.support, 2 * count + 1))
        answers = Answers(e.tensor("losses", (1, n)), e.tensor("right", (1, n)))
        e.launch(
            "prototypical.cl", "prototypes", (count * size,), outputs.read, p.write, n, size, whole=True, **episode
        )
        settings = self.scale, self.scale / self.dummy_temperature, self.open_weight, self._share(n)
        more = [control.scalars.read, slopes.write] if gradient is not None else []
        e.launch(
            "prototypical.cl", "prototypical", (n * group,), outputs.read, p.read, control.targets.read,
            answers.losses.write, answers.right.write, n, size, *map(float, settings), *more,
            whole=True, gradient=gradient is not None, cosine=self.distance == "cosine", **episode,
        )  # fmt: skip
        if gradient is not None:
            padded = gradient.blocks * BLOCK
            e.launch(
                "prototypical.cl", "prototypical_gradient", (n * padded,), outputs.read, p.read, slopes.read,
                gradient.write, n, size, padded, whole=True, **episode,
            )  # fmt: skip
        return answers


def _log_sum(logits: np.ndarray) -> np.ndarray:
    top = logits.max(1, keepdims=True)
    return top + np.log(np.exp(logits - top).sum(1, keepdims=True))


LOSSES: dict[str, type[Loss]] = {
    "sparse_categorical_crossentropy": SoftmaxCrossEntropy,
    "categorical_crossentropy": CategoricalCrossentropy,
    "categorical_focal_crossentropy": CategoricalFocalCrossentropy,
    "binary_crossentropy": BinaryCrossentropy,
    "binary_focal_crossentropy": BinaryFocalCrossentropy,
    "mean_squared_error": MeanSquaredError,
    "mse": MeanSquaredError,
    "mean_absolute_error": MeanAbsoluteError,
    "mae": MeanAbsoluteError,
    "huber": Huber,
}
