"""Callbacks, with Keras's names for the moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgelearn.display import Displayed
from edgelearn.errors import PlanError
from edgelearn.train.status import Logs, TrainedModel


class Callback:
    """Called during `fit`; `self.model` is the model. Set `self.model.stop_training = True` to end after the step.

    A callback may call `evaluate`, `predict` and `state` of the model.
    """

    model: TrainedModel

    def on_train_begin(self, logs: Logs) -> None: ...

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None: ...

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Logs) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Logs) -> None: ...

    def on_test_begin(self, logs: Logs) -> None:
        """Before `fit` evaluates its validation data."""

    def on_test_end(self, logs: Logs) -> None:
        """After that, with its figures."""

    def on_train_end(self, logs: Logs) -> None: ...

    def on_compile(self, done: int, total: int) -> None:
        """While kernels compile: `done` of `total`."""

    def on_extract(self, done: int, total: int) -> None:
        """While the frozen-prefix cache fills: `done` of `total` examples."""


class LambdaCallback(Callback):
    """A callback of functions, as Keras's LambdaCallback.

    Arguments:
    - `functions`: by the name of the moment, such as `on_epoch_end=lambda epoch, logs: print(epoch, logs)`.

    Raises PlanError for a moment that Callback doesn't have, and for what is no function.
    """

    def __init__(self, **functions: Callable[..., object]) -> None:
        moments = [name for name in vars(Callback) if name.startswith("on_")]
        for name, function in functions.items():
            if name not in moments or not callable(function):
                raise PlanError(f"LambdaCallback takes functions by the names {', '.join(moments)}, not '{name}'.")
            setattr(self, name, function)


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
