"""Callbacks, with Keras's names for the moments."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgelearn.display import Displayed
from edgelearn.errors import PlanError

from .status import Logs, TrainedModel


class Callback:
    """Called during `fit`; `self.model` is the model. Set `self.model.stop_training = True` to end after the step.

    A callback may call `evaluate`, `predict` and `state` of the model.
    """

    model: TrainedModel

    def on_train_begin(self, logs: Logs) -> None: ...

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Logs) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Logs) -> None: ...

    def on_train_end(self, logs: Logs) -> None: ...

    def on_compile(self, done: int, total: int) -> None:
        """While kernels compile: `done` of `total`."""

    def on_extract(self, done: int, total: int) -> None:
        """While the frozen-prefix cache fills: `done` of `total` examples."""


class CallbackList:
    """The callbacks of a `fit` on `model`. Call it with a moment, such as "on_epoch_end", and its arguments."""

    def __init__(self, model: TrainedModel, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        for callback in callbacks:
            callback.model = model

    def __call__(self, moment: str, *arguments) -> None:
        for callback in self._callbacks:
            getattr(callback, moment)(*arguments)


class History(Displayed, Callback):
    """Collects the logs of every epoch: `history["loss"]` is a list, and so on."""

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    @property
    def headline(self) -> str:
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.history.items())
        return f"of {len(self.epoch)} epochs" + (f"; the last: {last}" if last else "")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


class EarlyStopping(Callback):
    """Stop when a figure has stopped improving, as Keras's EarlyStopping.

    Arguments:
    - `monitor`: name of the figure in the epoch's logs; accuracies should rise, all others fall (default "val_loss").
    - `patience`: number of epochs without an improvement after which training stops (default 0).
    - `min_delta`: smallest change that counts as an improvement (default 0).

    Raises PlanError when an epoch's logs lack `monitor`.
    """

    def __init__(self, monitor: str = "val_loss", patience: int = 0, min_delta: float = 0.0) -> None:
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.best, self.waited = float("inf"), 0

    def on_train_begin(self, logs: Logs) -> None:
        self.best, self.waited = float("inf"), 0

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self.monitor not in logs:
            raise PlanError(
                f"EarlyStopping watches '{self.monitor}', but epoch {epoch + 1} has only {', '.join(logs)}. Watch "
                f"one of these, or give fit validation_data with validation_frequency=1."
            )
        value = -logs[self.monitor] if self.monitor.endswith("accuracy") else logs[self.monitor]
        if value < self.best - self.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.model.stop_training = True


class TimeLimit(Callback):
    """Stop at the end of the first step that ends more than `seconds` after the start."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, 0.0

    def on_train_begin(self, logs: Logs) -> None:
        self.start = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if time.monotonic() - self.start > self.seconds:
            self.model.stop_training = True


class ProgressBar(Callback):
    """A bar with the time left for compiling, extracting and training, and rows for epochs.

    Arguments:
    - `every`: epochs from one row to the next (default 1).
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self._bar = None
        self._task = None
        self._steps = 0

    def on_compile(self, done: int, total: int) -> None:
        self._show("compiling kernels", done, total)

    def on_extract(self, done: int, total: int) -> None:
        self._show("extracting features", done, total)

    def on_train_begin(self, logs: Logs) -> None:
        self._steps = self.model.steps_done
        self._show("training", self._steps, self.model.steps_total)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._show(f"training, loss {logs['loss']:.4f}", self.model.steps_done, self.model.steps_total)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if (epoch + 1) % self.every and epoch + 1 != self.model.epochs:
            return
        row = f"epoch {epoch + 1:>4}/{self.model.epochs}"
        for name, value in logs.items():
            row += f"  {name} {value:.4f}" if name != "seconds" else f"  {value:.1f} s"
        self._bar.console.print(row, highlight=False, soft_wrap=True) if self._bar else print(row)

    def on_train_end(self, logs: Logs) -> None:
        self._stop()

    def _show(self, text: str, done: int, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, refresh_per_second=4)
            self._bar.start()
        if self._task is None or self._bar.tasks[-1].fields.get("kind") != text.split(",")[0]:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(text, total=total, completed=done, kind=text.split(",")[0])
        self._bar.update(self._task, description=text, completed=done, total=total)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
