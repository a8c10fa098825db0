"""Losses: functions of outputs and targets with a float64 reference, and the launches that compute them and their
gradient. Those of other files are in this module's namespace, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .base import Arrays, Gradients, Op, Targets, only
from .constants import ErrorKind
from .ctc import CTC
from .emit import Answers, Control, Emitter
from .formula import NUMPY, differentiate
from .loss import Loss, Losses, formula_loss
from .tensor import BLOCK, Shape, Tensor

__all__ = [
    "CTC", "LOSSES", "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy", "CodewordHinge", "Huber", "Loss", "Losses", "MeanAbsoluteError",
    "MeanSquaredError", "MinimumEntropy", "PositiveHinge", "Prototypical", "SoftmaxCrossEntropy", "TripletLoss",
    "formula_loss",
]  # fmt: skip


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

    kernel = "softmax_cross_entropy.cl", "softmax_cross_entropy"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, classes = outputs.shape
        target = np.full_like(outputs, self.label_smoothing / classes)
        target[np.arange(n), targets] += 1 - self.label_smoothing
        p, log_p = (op.reference_forward([outputs], {}) for op in (Softmax(), LogSoftmax()))
        return -(target * log_p).sum(-1), (p - target) / n


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

    kernel = "minimum_entropy.cl", "minimum_entropy"

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise PlanError(f"The weight of unlabelled examples is at least 0 (usual is up to 1), not {self.weight}.")

    def labels(self, outputs: int) -> range:
        return range(-1, outputs)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(outputs)
        log_p = LogSoftmax().reference_forward([outputs], {})
        p = np.exp(log_p)
        entropy = -(p * log_p).sum(-1)
        unlabelled = targets < 0
        gradient = p.copy()
        gradient[np.arange(n), targets] -= 1
        gradient[unlabelled] = (-self.weight * p * (log_p + entropy[:, None]))[unlabelled]
        return np.where(unlabelled, self.weight * entropy, -log_p[np.arange(n), targets]), gradient / n


@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Sigmoid and cross-entropy of each output: the mean of -y log p - (1 - y) log(1 - p), with p = sigmoid(output).

    Targets are 0 to 1 in the shape of the outputs. A Sigmoid at the network's end belongs to the loss; outputs of a
    network without one are logits. The accuracy is the share of outputs on the target's side of 1/2.

    Arguments:
    - `label_smoothing`: share of each target replaced by 1/2, at least 0 and below 1 (default 0).

    Raises PlanError for another label_smoothing.
    """

    kernel = "binary_cross_entropy.cl", "binary_cross_entropy"
    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = "Sigmoid"
    accuracy: ClassVar[str] = "values"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    @property
    def settings(self) -> tuple[float, ...]:
        return self.label_smoothing, 0.0, -1.0

    @property
    def macros(self) -> dict[str, int]:
        return {"focal": isinstance(self, BinaryFocalCrossentropy)}

    def term(self, xp: Any, x: Any, y: Any) -> Any:
        """The loss of each output for a target from 0 to 1."""
        return _softplus(xp, x) - x * y

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        slope, _ = differentiate(self.term, outputs, y)
        return self.term(NUMPY, outputs, y).mean(-1), slope / outputs.size


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

    @property
    def settings(self) -> tuple[float, ...]:
        return self.label_smoothing, self.gamma, -1.0 if self.alpha is None else self.alpha

    def term(self, xp: Any, x: Any, y: Any) -> Any:
        wrong = y * xp.sigmoid(-x) + (1 - y) * xp.sigmoid(x)
        balance = 1.0 if self.alpha is None else y * self.alpha + (1 - y) * (1 - self.alpha)
        return super().term(xp, x, y) * wrong**self.gamma * balance


def check_smoothing(smoothing: float) -> None:
    """Raises PlanError for a label smoothing out of range."""
    if not 0 <= smoothing < 1:
        raise PlanError(f"label_smoothing is at least 0 and below 1 (usual is 0.1), not {smoothing}.")


def check_gamma(gamma: float) -> None:
    """Raises PlanError for an exponent of a focal loss that is out of range."""
    if not gamma >= 0:
        raise PlanError(f"gamma is at least 0 (usual is 2), not {gamma}.")


def _softplus(xp: Any, x: Any) -> Any:
    """log(1 + exp(x)), whose derivative is right at 0 too."""
    size = xp.where(x > 0, x, -x)
    return xp.clip(x, 0.0, np.inf) + xp.log1p(xp.exp(-size))


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

    kernel = "categorical_cross_entropy.cl", "categorical_cross_entropy"
    target_dtype: ClassVar[str] = "float32"
    takes_weights: ClassVar[bool] = True

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = targets * (1 - self.label_smoothing) + self.label_smoothing / outputs.shape[-1]
        log_p = LogSoftmax().reference_forward([outputs], {})
        slope, _ = differentiate(self.term, log_p, y)
        gradient = slope - np.exp(log_p) * slope.sum(-1, keepdims=True)
        return self.term(NUMPY, log_p, y).sum(-1), gradient / len(outputs)

    @property
    def settings(self) -> tuple[float, ...]:
        return self.label_smoothing, 0.0, 1.0

    @property
    def macros(self) -> dict[str, int]:
        return {"focal": isinstance(self, CategoricalFocalCrossentropy)}

    def term(self, xp: Any, log_p: Any, y: Any) -> Any:
        """The share of each class in the loss."""
        return -y * log_p


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

    @property
    def settings(self) -> tuple[float, ...]:
        return self.label_smoothing, self.gamma, self.alpha

    def term(self, xp: Any, log_p: Any, y: Any) -> Any:
        return -self.alpha * y * (1 - xp.exp(log_p)) ** self.gamma * log_p


@dataclass(frozen=True)
class RegressionLoss(Loss):
    """Base of the mean errors: targets are float, in the shape of the outputs."""

    kernel = "regression.cl", "regression"
    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = ""
    accuracy: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = True
    error: ClassVar[int] = ErrorKind.SQUARED

    @property
    def settings(self) -> tuple[float, ...]:
        return (getattr(self, "delta", 0.0),)

    @property
    def macros(self) -> dict[str, int]:
        return {"error": self.error}

    def term(self, xp: Any, d: Any) -> Any:
        """The error of each difference."""
        raise NotImplementedError

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        d = outputs - targets
        (slope,) = differentiate(self.term, d)
        return self.term(NUMPY, d).mean(-1), slope / d.size


@dataclass(frozen=True)
class MeanSquaredError(RegressionLoss):
    """Mean of (output - target)²."""

    def term(self, xp: Any, d: Any) -> Any:
        return xp.square(d)


@dataclass(frozen=True)
class MeanAbsoluteError(RegressionLoss):
    """Mean of |output - target|. Its slope at 0 is 0."""

    error: ClassVar[int] = ErrorKind.ABSOLUTE

    def term(self, xp: Any, d: Any) -> Any:
        return xp.abs(d)


@dataclass(frozen=True)
class Huber(RegressionLoss):
    """Mean of d² / 2 for differences |d| up to `delta`, and of delta (|d| - delta / 2) for larger ones (Huber 1964).

    Arguments:
    - `delta`: where the square becomes a line, above 0 (default 1).

    Raises PlanError for another delta.
    """

    error: ClassVar[int] = ErrorKind.HUBER

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise PlanError(f"Huber's delta is above 0 (usual is 1), not {self.delta}.")

    def term(self, xp: Any, d: Any) -> Any:
        size = xp.abs(d)
        return xp.where(size <= self.delta, xp.square(d) / 2, self.delta * (size - self.delta / 2))


SMALLEST = 1e-12  # as in kernels/cosine.cl


@dataclass(frozen=True)
class CosineHinge(Loss):
    """Base of the losses max(0, margin - cos(outputs, target)), or their square.

    Targets are float in the shape of the outputs. Their length doesn't matter, nor does that of the outputs.
    """

    kernel = "cosine.cl", "cosine_hinge"
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

    @property
    def macros(self) -> dict[str, int]:
        return {"squared": self.squared}


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

    With dummy prototypes the network gives (1 + dummy_prototypes) times the size of an embedding: after the embedding
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
                f"{self.support} examples, and queries come after them. Make micro-batches whole episodes."
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
    "ctc": CTC,
}


MINING = ("hard", "given")
TRIPLET_DISTANCES = ("squared", "euclidean")


@dataclass(frozen=True)
class TripletLoss(Loss):
    """Triplet loss of embeddings: max(0, d(anchor, positive) - d(anchor, negative) + margin), a mean over anchors
    (Schroff et al. 2015, "FaceNet: a unified embedding for face recognition and clustering").

    Targets are class numbers, int (n,). Distances are those of the outputs as they are: for embeddings of length 1 end
    the network with a layer that scales them. The accuracy is the share of anchors whose positive is nearer than the
    negative.

    Arguments:
    - `margin`: difference of distances at which a triplet stops counting, at least 0 (default 0.2, as published).
    - `mining`: `"hard"` takes every example of a micro-batch as an anchor, with the farthest example of its class and
      the nearest of another one there ("batch hard", Hermans et al. 2017, "In defense of the triplet loss for person
      re-identification"); an anchor that lacks one has loss 0. So micro-batches need several examples of each class.
      `"given"` takes triplets as they stand: anchor, positive, negative, anchor, …, whose labels aren't read.
    - `distance`: `"squared"` Euclidean, as published (default), or `"euclidean"`.

    Raises PlanError for values out of range.
    """

    head: ClassVar[str] = ""

    margin: float = 0.2
    mining: str = "hard"
    distance: str = "squared"

    def __post_init__(self) -> None:
        if self.mining not in MINING or self.distance not in TRIPLET_DISTANCES:
            raise PlanError(
                f"TripletLoss has a mining of {' or '.join(MINING)} and a distance of "
                f"{' or '.join(TRIPLET_DISTANCES)}, not {self.mining!r} and {self.distance!r}."
            )
        if not self.margin >= 0:
            raise PlanError(f"The margin of TripletLoss is at least 0 (usual is 0.2), not {self.margin}.")

    @property
    def ordered(self) -> bool:  # type: ignore[override]
        return self.mining == "given"

    def fits(self, examples: int) -> bool:
        return not self.ordered or examples % 3 == 0

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 1:
            raise PlanError(f"TripletLoss takes embeddings (size,), but the network gives {shape}: add a Flatten.")
        if not self.fits(examples):
            raise PlanError(
                f"A micro-batch of {examples} examples is no whole number of triplets: give a multiple of 3."
            )

    def labels(self, outputs: int) -> range:
        return range(1 << 24)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, gradient, losses = len(outputs), np.zeros_like(outputs), np.zeros(len(outputs))
        for anchor in range(n):
            difference = outputs[anchor] - outputs
            d = np.square(difference).sum(-1) if self.distance == "squared" else np.linalg.norm(difference, axis=-1)
            pair = self._pair(anchor, d, targets)
            share = 3 if self.ordered else 1
            if pair is None or not (missing := d[pair[0]] - d[pair[1]] + self.margin) > 0:
                continue
            losses[anchor] = share * missing
            for other, sign in zip(pair, (share, -share), strict=True):
                slope = 2.0 if self.distance == "squared" else 1 / d[other] if d[other] else 0.0
                gradient[anchor] += sign * slope * difference[other]
                gradient[other] -= sign * slope * difference[other]
        return losses, gradient / n

    def _pair(self, anchor: int, distances: np.ndarray, targets: np.ndarray) -> tuple[int, int] | None:
        """The numbers of an anchor's positive and negative, or None."""
        if self.ordered:
            return (anchor + 1, anchor + 2) if anchor % 3 == 0 else None
        same = targets == targets[anchor]
        positive = same & (np.arange(len(targets)) != anchor)
        if not positive.any() or same.all():
            return None
        return int(np.where(positive, distances, -1).argmax()), int(np.where(same, np.inf, distances).argmin())

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        n = outputs.rows
        answers = Answers(e.tensor("losses", (1, n)), e.tensor("right", (1, n)))
        triplets = e.tensor("triplets", (n, 4))  # positive, negative, and the slopes of their distances
        macros = {"given": self.ordered, "squared": self.distance == "squared"}
        e.launch(
            "triplet.cl", "triplets", (n * e.traits.group,), outputs.read, control.targets.read, answers.losses.write,
            answers.right.write, triplets.write, n, outputs.channels, float(self.margin), whole=True, gradient=False,
            **macros,
        )  # fmt: skip
        if gradient is not None:
            e.launch(
                "triplet.cl", "triplet_gradient", (n, gradient.blocks), outputs.read, triplets.read,
                control.scalars.read, gradient.write, n,
            )  # fmt: skip
        return answers
