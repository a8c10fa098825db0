"""Metrics of predictions, exact over a whole data set: NumPy on the host, fed micro-batch by micro-batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.errors import PlanError, ShapeError


class Metric(ABC):
    """Base of the metrics. `start` is called before a data set, `update` with each micro-batch, `result` at the end.

    Targets are as the loss takes them: int class numbers (n, ...), or float32 in the shape of the predictions.
    Predictions are as `Model.predict` returns them. Weights of examples and classes don't count.

    Arguments:
    - `name`: in the logs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
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


class Accuracy(_Mean):
    """Share of right answers: the largest output is that of the target's class; with a single output, both lie on the
    same side of 1/2.

    Arguments:
    - `name`: in the logs (default "accuracy").
    """

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(name)

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

    def __init__(self, threshold: float = 0.5, name: str = "binary_accuracy") -> None:
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


class _Error(_Mean):
    def errors(self, difference: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return self.errors(same_shape(self, y_true, y_pred).astype(np.float64) - y_pred)


class MeanSquaredError(_Error):
    """Mean of (target - output)².

    Arguments:
    - `name`: in the logs (default "mean_squared_error").
    """

    def __init__(self, name: str = "mean_squared_error") -> None:
        super().__init__(name)

    def errors(self, difference: np.ndarray) -> np.ndarray:
        return difference**2


class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of (target - output)².

    Arguments:
    - `name`: in the logs (default "root_mean_squared_error").
    """

    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(name)

    def result(self) -> float:
        return float(np.sqrt(super().result()))


class MeanAbsoluteError(_Error):
    """Mean of |target - output|.

    Arguments:
    - `name`: in the logs (default "mean_absolute_error").
    """

    def __init__(self, name: str = "mean_absolute_error") -> None:
        super().__init__(name)

    def errors(self, difference: np.ndarray) -> np.ndarray:
        return np.abs(difference)


class Function(Metric):
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
