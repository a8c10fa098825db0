"""Watch a figure of the epochs' logs: whether it has improved."""

from __future__ import annotations

from math import inf

from edgelearn.errors import PlanError
from edgelearn.ops.settings import number
from edgelearn.train.status import Logs

from .base import Callback

RISING = (
    "accuracy",
    "precision",
    "recall",
    "f1",
    "f1_score",
    "auc",
    "iou",
)  # ends of names of figures that should rise


class Monitor(Callback):
    """Base of the callbacks that watch a figure.

    Arguments:
    - `monitor`: name of the figure in the epoch's logs (default "val_loss").
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `min_delta`: smallest change that counts as an improvement (default 0).

    Raises PlanError for another mode, and when an epoch's logs lack `monitor`.
    """

    def __init__(self, monitor: str = "val_loss", mode: str = "auto", min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise PlanError(f"mode is 'min', 'max' or 'auto', not {mode!r:.60}.")
        self.monitor, self.min_delta = monitor, abs(number("min_delta", min_delta))
        self.rises = mode == "max" or (mode == "auto" and monitor.endswith(RISING))
        self.best = inf  # the lowest; of a figure that should rise, its negative

    def value(self, epoch: int, logs: Logs) -> float:
        """Return the figure of this epoch, negative if it should rise."""
        if self.monitor not in logs:
            raise PlanError(
                f"{type(self).__name__} watches '{self.monitor}', but epoch {epoch + 1} has only {', '.join(logs)}. "
                f"Watch one of these, or give fit validation_data with validation_frequency=1."
            )
        return -logs[self.monitor] if self.rises else logs[self.monitor]

    def improves(self, value: float) -> bool:
        """True if `value` is the best so far, which it then becomes."""
        better = value < self.best - self.min_delta
        self.best = value if better else self.best
        return better
