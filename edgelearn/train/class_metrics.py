"""Metrics that count answers by class: precision, recall, F1, AUC, confusion matrix, intersection over union."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import PlanError

from .metric import Metric, classes_of, same_shape

AVERAGES = ("micro", "macro", "none")


class _Counts(Metric):
    """True positives, false positives and false negatives of each output.

    Targets in the shape of the outputs are yes or no for each of these, with `threshold`; class numbers are yes for the
    largest output.
    """

    def __init__(self, threshold: float, average: str | None, name: str) -> None:
        if average not in (None, *AVERAGES):
            raise PlanError(f"average is one of {', '.join(AVERAGES)}, or None, not {average!r}.")
        self.threshold, self.average = threshold, average
        super().__init__(name)

    def start(self) -> None:
        self.counts, self.of_classes = np.zeros((3, 0), np.int64), False

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        outputs = y_pred.shape[-1]
        if y_true.dtype.kind in "iu" and y_true.shape != y_pred.shape:
            wanted, said = (np.arange(outputs) == n[..., None] for n in (y_true, y_pred.argmax(-1)))
            self.of_classes = True
        else:
            wanted, said = same_shape(self, y_true, y_pred) > 0.5, y_pred > self.threshold
        pairs = (wanted & said, ~wanted & said, wanted & ~said)
        counts = np.stack([pair.reshape(-1, outputs).sum(0) for pair in pairs])
        self.counts = self.counts + counts if self.counts.size else counts

    def result(self) -> float | np.ndarray:
        average = self.average or ("macro" if self.of_classes else "micro")
        counts = self.counts.sum(1, keepdims=True) if average == "micro" else self.counts
        scores = self.score(*counts.astype(np.float64))
        return scores if average == "none" else float(scores.mean())

    def score(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Precision(_Counts):
    """Share of right answers among those said to be there.

    Arguments:
    - `threshold`: of outputs that are yes or no (default 0.5).
    - `average`: "micro" counts all outputs together, "macro" is the mean over outputs, "none" gives an array (default:
      "macro" for class numbers, else "micro", as Keras).
    - `name`: in the logs (default "precision").

    Raises PlanError for another average.
    """

    def __init__(self, threshold: float = 0.5, average: str | None = None, name: str = "precision") -> None:
        super().__init__(threshold, average, name)

    def score(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _share(right, right + too_many)


class Recall(_Counts):
    """Share of what is there that is found.

    Arguments:
    - `threshold`, `average`: as Precision.
    - `name`: in the logs (default "recall").

    Raises PlanError for another average.
    """

    def __init__(self, threshold: float = 0.5, average: str | None = None, name: str = "recall") -> None:
        super().__init__(threshold, average, name)

    def score(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _share(right, right + missed)


class F1(_Counts):
    """Harmonic mean of precision and recall.

    Arguments:
    - `threshold`, `average`: as Precision.
    - `name`: in the logs (default "f1_score").

    Raises PlanError for another average.
    """

    def __init__(self, threshold: float = 0.5, average: str | None = None, name: str = "f1_score") -> None:
        super().__init__(threshold, average, name)

    def score(self, right: np.ndarray, too_many: np.ndarray, missed: np.ndarray) -> np.ndarray:
        return _share(2 * right, 2 * right + too_many + missed)


class ConfusionMatrix(Metric):
    """Number of examples by target (row) and answer (column): an int array, which `evaluate` returns and logs of epochs
    leave out. A single output counts as two classes, at 1/2.

    Arguments:
    - `name`: in the logs (default "confusion_matrix").
    """

    def __init__(self, name: str = "confusion_matrix") -> None:
        super().__init__(name)

    def start(self) -> None:
        self.matrix = np.zeros((0, 0), np.int64)

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        if y_pred.shape[-1] == 1:
            classes, wanted, said = 2, y_true.reshape(-1) > 0.5, y_pred.reshape(-1) > 0.5
        else:
            classes, wanted, said = y_pred.shape[-1], classes_of(y_true).reshape(-1), y_pred.argmax(-1).reshape(-1)
        counts = np.bincount(wanted.astype(np.int64) * classes + said, minlength=classes**2).reshape(classes, classes)
        self.matrix = self.matrix + counts if self.matrix.size else counts

    def result(self) -> np.ndarray | float:
        return self.matrix


class MeanIoU(ConfusionMatrix):
    """Intersection over union of each class, averaged over the classes that are there or are said to be.

    Arguments:
    - `name`: in the logs (default "mean_io_u").
    """

    def __init__(self, name: str = "mean_io_u") -> None:
        super().__init__(name)

    def result(self) -> float:
        right, either = np.diag(self.matrix), self.matrix.sum(0) + self.matrix.sum(1) - np.diag(self.matrix)
        return float((right[either > 0] / either[either > 0]).mean())


class AUC(Metric):
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

    def __init__(self, curve: str = "ROC", multi_label: bool = False, name: str = "auc") -> None:
        if curve not in ("ROC", "PR"):
            raise PlanError(f"curve is 'ROC' or 'PR', not {curve!r}.")
        self.curve, self.multi_label = curve, multi_label
        super().__init__(name)

    def start(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        self.of_classes = False

    def update(self, y_true: np.ndarray, y_pred: np.ndarray) -> None:
        outputs = y_pred.shape[-1]
        if y_true.dtype.kind in "iu" and y_true.shape != y_pred.shape:
            y_true, self.of_classes = np.arange(outputs) == y_true[..., None], True
        wanted = same_shape(self, y_true, y_pred) > 0.5
        self.seen.append((wanted.reshape(-1, outputs), y_pred.reshape(-1, outputs)))

    def result(self) -> float:
        wanted, scores = (np.concatenate(parts) for parts in zip(*self.seen, strict=True))
        if self.of_classes and wanted.shape[1] == 2:
            wanted, scores = wanted[:, 1:], scores[:, 1:]
        elif not (self.of_classes or self.multi_label):
            wanted, scores = wanted.reshape(-1, 1), scores.reshape(-1, 1)
        area = _roc_area if self.curve == "ROC" else _average_precision
        areas = [area(wanted[:, c], scores[:, c]) for c in range(wanted.shape[1])]
        known = [area for area in areas if not np.isnan(area)]
        return float(np.mean(known)) if known else float("nan")


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and 0 where there is nothing."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


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
