"""Metrics by Keras's names, and those of a model by output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.graph import Network

from .class_metrics import AUC, F1, ConfusionMatrix, MeanIoU, Precision, Recall
from .metric import (
    Accuracy,
    BinaryAccuracy,
    Function,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    RootMeanSquaredError,
    TopKAccuracy,
)

__all__ = [
    "AUC", "F1", "METRICS", "Accuracy", "BinaryAccuracy", "ConfusionMatrix", "Function", "MeanAbsoluteError", "MeanIoU",
    "MeanSquaredError", "Metric", "Precision", "Recall", "RootMeanSquaredError", "TopKAccuracy",
]  # fmt: skip

METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "acc": Accuracy,
    "sparse_categorical_accuracy": Accuracy,
    "categorical_accuracy": Accuracy,
    "binary_accuracy": BinaryAccuracy,
    "top_k_categorical_accuracy": TopKAccuracy,
    "sparse_top_k_categorical_accuracy": TopKAccuracy,
    "precision": Precision,
    "recall": Recall,
    "f1_score": F1,
    "auc": AUC,
    "mean_squared_error": MeanSquaredError,
    "mse": MeanSquaredError,
    "root_mean_squared_error": RootMeanSquaredError,
    "rmse": RootMeanSquaredError,
    "mean_absolute_error": MeanAbsoluteError,
    "mae": MeanAbsoluteError,
    "confusion_matrix": ConfusionMatrix,
    "mean_io_u": MeanIoU,
}


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
        return Function(given)  # type: ignore[arg-type]  what it returns is seen when it is called
    raise PlanError(f"A metric is a name such as 'accuracy', an object or a function f(y_true, y_pred), not {given!r}.")
