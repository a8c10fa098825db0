"""Metrics of predictions, exact over a whole data set: NumPy on the host, fed micro-batch by micro-batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgelearn.errors import PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.statistics import confusion_matrix


class Metric(ABC):
    """Base of the metrics. `start` is called before a data set, `update` with each micro-batch, `result` at the end.

    Targets are as the loss takes them: int class numbers (n, ...), or float32 in the shape of the predictions.
    Predictions are as `Model.predict` returns them. Weights of examples and classes don't count.

    Arguments:
    - `name`: in the logs (default: `log_name`, which those of the package have).
    """

    log_name = "metric"

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.log_name
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Forget what was seen."""

    @abstractmethod
    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        """See a micro-batch. Raises ShapeError for targets that the metric has no use for."""

    @abstractmethod
    def result(self) -> Any:
        """Return the metric of everything seen: a float, or an array."""


class _Mean(Metric):
    """The mean of values that each micro-batch gives."""

    def start(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        values = self.values(y_true, y_pred)
        self.total += float(values.sum(dtype=np.float64))
        self.count += values.size

    def result(self) -> float:
        return self.total / self.count if self.count else float("nan")

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def difference(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return same_shape(self, y_true, y_pred).astype(np.float64) - y_pred


class Accuracy(_Mean):
    """Share of right answers: the largest output is that of the target's class; with a single output, both lie on the
    same side of 1/2.

    Arguments:
    - `name`: in the logs (default "accuracy").
    """

    log_name = "accuracy"

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        if y_true.dtype.kind == "f" and y_pred.shape[-1] == 1:
            return (y_true > 0.5) == (y_pred > 0.5)
        return classes_of(y_true) == y_pred.argmax(-1)


class BinaryAccuracy(_Mean):
    """Share of outputs that lie on the target's side of a threshold, for several labels.

    Arguments:
    - `threshold`: of the outputs (default 0.5).
    - `name`: in the logs (default "binary_accuracy").
    """

    log_name = "binary_accuracy"

    def __init__(self, threshold: float = 0.5, name: str | None = None) -> None:
        self.threshold = threshold
        super().__init__(name)

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return (same_shape(self, y_true, y_pred) > 0.5) == (y_pred > self.threshold)


class TopKAccuracy(_Mean):
    """Share of targets among the classes of the `k` largest outputs. Of equal outputs the first ones count as larger.

    Arguments:
    - `k`: number of classes (default 5).
    - `name`: in the logs (default "top_5_accuracy", with the number).

    Raises PlanError for a k below 1.
    """

    def __init__(self, k: int = 5, name: str | None = None) -> None:
        if k < 1:
            raise PlanError(f"k is at least 1 (usual is 5), not {k}.")
        self.k = k
        super().__init__(name or f"top_{k}_accuracy")

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        first = np.argsort(-y_pred, axis=-1, kind="stable")[..., : self.k]
        return (first == classes_of(y_true)[..., None]).any(-1)


class MeanSquaredError(_Mean):
    """Mean of (target - output)².

    Arguments:
    - `name`: in the logs (default "mean_squared_error").
    """

    log_name = "mean_squared_error"

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return self.difference(y_true, y_pred) ** 2


class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of (target - output)².

    Arguments:
    - `name`: in the logs (default "root_mean_squared_error").
    """

    log_name = "root_mean_squared_error"

    def result(self) -> float:
        return float(np.sqrt(super().result()))


class MeanAbsoluteError(_Mean):
    """Mean of |target - output|.

    Arguments:
    - `name`: in the logs (default "mean_absolute_error").
    """

    log_name = "mean_absolute_error"

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return np.abs(self.difference(y_true, y_pred))


class FunctionMetric(Metric):
    """A function of one's own, called once with all targets and all predictions, which it keeps until then.

    Arguments:
    - `function`: `function(y_true, y_pred)` returns a number.
    - `name`: in the logs (default: the function's).
    """

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], float], name: str | None = None) -> None:
        self.function = function
        super().__init__(name or getattr(function, "__name__", type(function).__name__))

    def start(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        self.seen.append((y_true, y_pred))

    def result(self) -> float:
        y_true, y_pred = (np.concatenate(parts) for parts in zip(*self.seen, strict=True))
        found = np.asarray(self.function(y_true, y_pred))
        if found.size != 1 or found.dtype.kind not in "fiub":
            raise PlanError(
                f"The metric '{self.name}' returned {found.dtype} of shape {found.shape}: a function returns one "
                f"number, such as the mean of these. For an array derive a class from el.metrics.Metric."
            )
        return float(found.item())


def classes_of(y_true: np.ndarray) -> np.ndarray:
    """Class numbers of class numbers, or of one-hot or soft targets."""
    return y_true if y_true.dtype.kind in "iu" else y_true.argmax(-1)


def same_shape(metric: Metric, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    if y_true.shape != y_pred.shape:
        raise ShapeError(
            f"{type(metric).__name__} compares targets with outputs of the same shape, but these are {y_true.dtype} "
            f"{y_true.shape} and {y_pred.shape}. For class numbers use Accuracy, TopKAccuracy or ConfusionMatrix."
        )
    return y_true


# -- answers counted by class ------------------------------------------------------------------------------------------

AVERAGES = ("micro", "macro", "none")


class _ByClass(Metric):
    """Answers that are yes or no for each output.

    Targets in the shape of the outputs say so for each of these; class numbers are yes for one output.
    """

    of_classes = False  # targets are class numbers

    def wanted(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        """The targets, bool in the shape of the outputs."""
        if y_true.dtype.kind in "iu" and y_true.shape != y_pred.shape:
            y_true, self.of_classes = np.arange(y_pred.shape[-1]) == y_true[..., None], True
        return same_shape(self, y_true, y_pred) > 0.5


class _Counts(_ByClass):
    """True positives, false positives and false negatives of each output.

    Arguments:
    - `threshold`: of outputs that are yes or no (default 0.5); for class numbers the largest output is yes.
    - `average`: "micro" counts all outputs together, "macro" is the mean over outputs, "none" gives an array (default:
      "macro" for class numbers, else "micro", as Keras).
    - `name`: in the logs.

    Raises PlanError for another average.
    """

    def __init__(self, threshold: float = 0.5, average: str | None = None, name: str | None = None) -> None:
        if average not in (None, *AVERAGES):
            raise PlanError(f"average is one of {', '.join(AVERAGES)}, or None, not {average!r}.")
        self.threshold, self.average = threshold, average
        super().__init__(name)

    def start(self) -> None:
        self.counts, self.of_classes = np.zeros((3, 1), np.int64), False

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        outputs = y_pred.shape[-1]
        numbers = y_true.dtype.kind in "iu" and y_true.shape != y_pred.shape
        wanted = self.wanted(y_true, y_pred)
        said = np.arange(outputs) == y_pred.argmax(-1)[..., None] if numbers else y_pred > self.threshold
        pairs = (wanted & said, ~wanted & said, wanted & ~said)
        self.counts = self.counts + np.stack([pair.reshape(-1, outputs).sum(0) for pair in pairs])

    def result(self) -> float | np.ndarray:
        average = self.average or ("macro" if self.of_classes else "micro")
        counts = self.counts.sum(1, keepdims=True) if average == "micro" else self.counts
        part, whole = self.share(*counts.astype(np.float64))
        scores = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
        return scores if average == "none" else float(scores.mean())

    def share(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of the score, which is 0 where there is nothing."""
        raise NotImplementedError


class Precision(_Counts):
    """Share of right answers among those said to be there: Keras's metric; `el.Precision` is that of computations.

    Arguments:
    - `threshold`: of outputs that are yes or no (default 0.5).
    - `average`: "micro" counts all outputs together, "macro" is the mean over outputs, "none" gives an array (default:
      "macro" for class numbers, else "micro", as Keras).
    - `name`: in the logs (default "precision").

    Raises PlanError for another average.
    """

    log_name = "precision"

    def share(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return right, right + too_many


class Recall(_Counts):
    """Share of what is there that is found. Arguments and errors as Precision; its name is "recall"."""

    log_name = "recall"

    def share(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return right, right + missed


class F1(_Counts):
    """Harmonic mean of precision and recall. Arguments and errors as Precision; its name is "f1_score"."""

    log_name = "f1_score"

    def share(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 2 * right, 2 * right + too_many + missed


class ConfusionMatrix(Metric):
    """Number of examples by target (row) and answer (column): an int array, which `evaluate` returns and logs of epochs
    leave out. A single output counts as two classes, at 1/2.

    Arguments:
    - `name`: in the logs (default "confusion_matrix").
    """

    log_name = "confusion_matrix"

    def start(self) -> None:
        self.matrix: np.ndarray = np.zeros((1, 1), np.int64)

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        classes = y_pred.shape[-1]
        if classes == 1:
            classes, wanted, said = 2, (y_true > 0.5).astype(int), (y_pred > 0.5).astype(int)
        else:
            wanted, said = classes_of(y_true), y_pred.argmax(-1)
        self.matrix = self.matrix + confusion_matrix(wanted.reshape(-1), said.reshape(-1), classes)

    def result(self) -> np.ndarray | float:
        return self.matrix


class MeanIoU(ConfusionMatrix):
    """Intersection over union of each class, averaged over the classes that are there or are said to be.

    Arguments:
    - `name`: in the logs (default "mean_io_u").
    """

    log_name = "mean_io_u"

    def result(self) -> float:
        right, either = np.diag(self.matrix), self.matrix.sum(0) + self.matrix.sum(1) - np.diag(self.matrix)
        return float((right[either > 0] / either[either > 0]).mean())


class AUC(_ByClass):
    """Area under the curve, exact for ties: that of the receiver operating characteristic is the probability that a
    positive example gets a larger output than a negative one; that of precision over recall is the average precision.

    Class numbers are one class against the others, averaged over the classes that occur; of two classes the second is
    the positive one. It keeps all targets and outputs until the end.

    Arguments:
    - `curve`: "ROC" or "PR" (default "ROC").
    - `multi_label`: average over the outputs, instead of counting all together (default False), for targets in the
      shape of the outputs.
    - `name`: in the logs (default "auc").

    Raises PlanError for another curve.
    """

    log_name = "auc"

    def __init__(self, curve: str = "ROC", multi_label: bool = False, name: str | None = None) -> None:
        if curve not in ("ROC", "PR"):
            raise PlanError(f"curve is 'ROC' or 'PR', not {curve!r}.")
        self.curve, self.multi_label = curve, multi_label
        super().__init__(name)

    def start(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        self.of_classes = False

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        outputs = y_pred.shape[-1]
        self.seen.append((self.wanted(y_true, y_pred).reshape(-1, outputs), y_pred.reshape(-1, outputs)))

    def result(self) -> float:
        wanted, scores = (np.concatenate(parts) for parts in zip(*self.seen, strict=True))
        if self.of_classes and wanted.shape[1] == 2:
            wanted, scores = wanted[:, 1:], scores[:, 1:]
        elif not (self.of_classes or self.multi_label):
            wanted, scores = wanted.reshape(-1, 1), scores.reshape(-1, 1)
        area = _roc_area if self.curve == "ROC" else _average_precision
        areas = np.array([area(*column) for column in zip(wanted.T, scores.T, strict=True)])
        known = areas[~np.isnan(areas)]
        return float(known.mean()) if known.size else float("nan")


def _roc_area(wanted: np.ndarray, scores: np.ndarray) -> float:
    """The Mann-Whitney statistic from mean ranks; NaN without positives or negatives."""
    positives = int(wanted.sum())
    negatives = len(wanted) - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[wanted].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _average_precision(wanted: np.ndarray, scores: np.ndarray) -> float:
    """Sum of precision times the gain in recall, over the different scores; NaN without positives."""
    if not wanted.any():
        return float("nan")
    _, inverse = np.unique(-scores, return_inverse=True)
    right, said = (np.cumsum(np.bincount(inverse, weights=w)) for w in (wanted.astype(float), np.ones(len(wanted))))
    gains = np.diff(right, prepend=0.0) / right[-1]
    return float((gains * right / said).sum())


METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy, "acc": Accuracy, "sparse_categorical_accuracy": Accuracy, "categorical_accuracy": Accuracy,
    "binary_accuracy": BinaryAccuracy, "top_k_categorical_accuracy": TopKAccuracy,
    "sparse_top_k_categorical_accuracy": TopKAccuracy, "precision": Precision, "recall": Recall, "f1_score": F1,
    "auc": AUC, "mean_squared_error": MeanSquaredError, "mse": MeanSquaredError,
    "root_mean_squared_error": RootMeanSquaredError, "rmse": RootMeanSquaredError,
    "mean_absolute_error": MeanAbsoluteError, "mae": MeanAbsoluteError, "confusion_matrix": ConfusionMatrix,
    "mean_io_u": MeanIoU,
}  # fmt: skip


class OutputMetrics:
    """The metrics of a network's outputs.

    Arguments:
    - `metrics`: metrics, names of METRICS, or functions `f(y_true, y_pred)`: one or a list of them for every output, or
      a dictionary of these by output.
    - `network`: whose outputs they are for.

    Raises PlanError for other things, for unknown outputs, and for two metrics of one name.
    """

    def __init__(self, metrics: Any, network: Network) -> None:
        several = len(network.outputs) > 1
        given = metrics if isinstance(metrics, Mapping) else dict.fromkeys(network.outputs, metrics)
        if unknown := [name for name in given if name not in network.outputs]:
            raise PlanError(f"metrics name '{unknown[0]}', but outputs are {', '.join(network.outputs)}.")
        self.by_log: dict[str, tuple[str, Metric]] = {}
        for output, some in given.items():
            for one in some if isinstance(some, Sequence) and not isinstance(some, str) else [some]:
                metric = as_metric(one)
                log = f"{output}_{metric.name}" if several else metric.name
                if log in self.by_log:
                    raise PlanError(f"Two metrics are called '{log}': give one of them another name=.")
                self.by_log[log] = output, metric

    def __bool__(self) -> bool:
        return bool(self.by_log)

    def start(self) -> None:
        for _, metric in self.by_log.values():
            metric.start()

    def update(self, y_true: Mapping[str, np.ndarray], y_pred: Mapping[str, np.ndarray]) -> None:
        """See a micro-batch. Arguments: targets and predictions by output."""
        for output, metric in self.by_log.values():
            if output not in y_true:
                raise PlanError(f"The metric '{metric.name}' needs targets of '{output}', which has no loss.")
            metric.update(y_true[output], y_pred[output])

    def results(self) -> dict[str, Any]:
        return {log: metric.result() for log, (_, metric) in self.by_log.items()}


def as_metric(given: Any) -> Metric:
    """Return a metric from one, its class, its name or a function. Raises PlanError for anything else."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        if given.lower() not in METRICS:
            raise PlanError(f"No metric is called '{given}'. There are: {', '.join(METRICS)}.")
        return METRICS[given.lower()]()
    if isinstance(given, type) and issubclass(given, Metric):
        return given()  # type: ignore[call-arg]  those of the package need no arguments
    if callable(given):
        return FunctionMetric(given)  # type: ignore[arg-type]  what it returns is seen when it is called
    raise PlanError(f"A metric is a name such as 'accuracy', an object or a function f(y_true, y_pred), not {given!r}.")
