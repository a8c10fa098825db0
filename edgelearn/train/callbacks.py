"""Callbacks, with Keras's names for the moments of `fit`: history, checkpoints, early stopping, rates, progress."""

from __future__ import annotations

import csv
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol, TextIO

from edgelearn.compile import Invert, Plan
from edgelearn.display import Displayed, escaped, plural
from edgelearn.errors import PlanError, ReconstructionError, RunError
from edgelearn.interop.weights import Weights
from edgelearn.ops.base import number, whole
from edgelearn.tables import Table

from .state import Logs, TrainedModel, check_suffix


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


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks as a list; a single one is fine, and so is None. Raises PlanError for anything else."""
    given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else callbacks
    if not isinstance(given, Sequence | set | frozenset) or isinstance(given, str):
        raise PlanError(f"callbacks is a list of Callback objects, such as [EarlyStopping()], not {callbacks!r:.60}.")
    for callback in given:
        if not isinstance(callback, Callback):
            raise PlanError(
                f"A callback is an object of a class that derives from Callback, such as EarlyStopping(), not "
                f"{callback!r:.60}."
            )
    return list(given)


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
    """Collects the logs of every epoch: `history["loss"]` is a list, and so on. A notebook shows its curves."""

    drawn_by = "edgelearn.widgets.pages.shown:history_html"

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    @property
    def headline(self) -> str:
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.history.items())
        return f"of {plural(len(self.epoch), 'epoch')}" + (f"; the last: {last}" if last else "")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


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


class EarlyStopping(Monitor):
    """Stop when a figure has stopped improving, as Keras's EarlyStopping.

    Arguments:
    - `monitor`: name of the figure in the epoch's logs (default "val_loss").
    - `patience`: number of epochs without an improvement after which training stops (default 0).
    - `min_delta`: smallest change that counts as an improvement (default 0).
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `baseline`: an improvement has to be better than this, too (default: none).
    - `restore_best_weights`: give the model the weights of the best epoch at the end (default False).
    - `start_from_epoch`: epochs before this one, counted from 0, are not watched (default 0).

    Raises PlanError for another mode, and when an epoch's logs lack `monitor`.
    """

    def __init__(
        self, monitor: str = "val_loss", patience: int = 0, min_delta: float = 0.0, mode: str = "auto",
        baseline: float | None = None, restore_best_weights: bool = False, start_from_epoch: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta)
        self.patience = whole("patience", patience, 0)
        self.baseline = None if baseline is None else number("baseline", baseline)
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = whole("start_from_epoch", start_from_epoch, 0)
        self.waited, self.best_epoch = 0, 0
        self._best_weights: Weights | None = None

    def on_train_begin(self, logs: Logs) -> None:
        self.best, self.waited, self._best_weights = inf, 0, None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        value = self.value(epoch, logs)
        if epoch < self.start_from_epoch:
            return
        self.waited += 1
        better = self.improves(value)
        if better or self._best_weights is None:
            self.best_epoch = epoch
            self._best_weights = self.model.weights if self.restore_best_weights else None
        if better and (self.baseline is None or value < (-self.baseline if self.rises else self.baseline)):
            self.waited = 0
        elif not better and self.waited >= self.patience:
            self.model.stop_training = True

    def on_train_end(self, logs: Logs) -> None:
        if self._best_weights is not None:
            self.model.weights = self._best_weights
            self._best_weights = None


class ModelCheckpoint(Monitor):
    """Save the model at the end of every epoch, or of the best ones, as Keras's ModelCheckpoint.

    A file is complete or the one before: it is written under another name first. `edgelearn.load(path,
    optimizer=…)` continues the training from it. For the best and the last model use two of these.

    Arguments:
    - `filepath`: a file .safetensors; it may hold `{epoch}` and names of figures, as in
      "{epoch:03d}-{val_loss:.2f}.safetensors".
    - `monitor`: name of the figure in the epoch's logs (default "val_loss"); needed for `save_best_only`.
    - `save_best_only`: save only if the figure has improved (default False).
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `save_freq`: `"epoch"` (default), or a number of steps from one saving to the next.
    - `initial_value_threshold`: the figure to improve on first, such as that of an earlier training (default: none).
    - `save_weights_only`: write the weights alone, for `Model.load_weights`, which continue no training; the file
      may then be .weights.h5 or .pt, too (default False).

    Raises PlanError for arguments that can't be, FormatError for a file's name of another format, RunError if the file
    can't be written.
    """

    def __init__(
        self, filepath: str | Path, monitor: str = "val_loss", save_best_only: bool = False, mode: str = "auto",
        save_freq: str | int = "epoch", initial_value_threshold: float | None = None,
        save_weights_only: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode)
        self.filepath, self.save_best_only, self.save_weights_only = str(filepath), save_best_only, save_weights_only
        check_suffix(filepath, save_weights_only)
        self.save_freq = save_freq if save_freq == "epoch" else whole("save_freq", save_freq)
        if save_best_only and self.save_freq != "epoch":
            raise PlanError("save_best_only compares epochs: leave save_freq at 'epoch'.")
        if initial_value_threshold is not None:
            threshold = number("initial_value_threshold", initial_value_threshold)
            self.best = -threshold if self.rises else threshold
        self._steps = 0

    def on_train_begin(self, logs: Logs) -> None:
        if not hasattr(self.model, "save"):
            raise PlanError("ModelCheckpoint saves a Model: a Trainer has no file of its own.")
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._steps += 1
        if self.save_freq != "epoch" and self._steps % int(self.save_freq) == 0:
            self._save(self.model.position.epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self.save_freq == "epoch" and (not self.save_best_only or self.improves(self.value(epoch, logs))):
            self._save(epoch, logs)

    def _save(self, epoch: int, logs: Logs) -> None:
        try:
            path = Path(self.filepath.format(**{**logs, "epoch": epoch + 1}))
        except (KeyError, IndexError, ValueError) as error:
            raise PlanError(
                f"The name of the checkpoint, '{self.filepath}', can't be made: {error}. There are epoch, "
                f"{', '.join(logs)}."
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        model: Any = self.model
        (model.save_weights if self.save_weights_only else model.save)(path)


class SwapEMAWeights(Callback):
    """Put the moving average of the weights in the model while it is validated, as Keras's SwapEMAWeights.

    The optimizer keeps the average: `Adam(use_ema=True)`. Unlike in Keras, `fit` ends with the weights themselves;
    Model.swap_averages puts the average in.

    Arguments:
    - `swap_on_epoch`: also from the end of an epoch to the beginning of the next, so that a ModelCheckpoint after this
      callback saves the average (default False). `fit` then ends with the average in the model.

    Raises PlanError if the optimizer keeps no average.
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        self.swap_on_epoch = swap_on_epoch
        self._swapped = False

    def on_train_begin(self, logs: Logs) -> None:
        self._swapped = False

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self._swap(False)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._swap(self.swap_on_epoch)

    def on_test_begin(self, logs: Logs) -> None:
        self._swap(self.model.position.updates > 0)

    def on_test_end(self, logs: Logs) -> None:
        self._swap(False)

    def _swap(self, averaged: bool) -> None:
        if averaged != self._swapped:
            self.model.swap_averages()
            self._swapped = averaged


class ReduceLROnPlateau(Monitor):
    """Lower the learning rate when a figure has stopped improving, as Keras's ReduceLROnPlateau.

    The rate becomes part of the training's state: a checkpoint holds it. It is added to the epoch's logs as
    "learning_rate".

    Arguments:
    - `monitor`: name of the figure in the epoch's logs (default "val_loss").
    - `factor`: the rate is multiplied by it (default 0.1).
    - `patience`: number of epochs without an improvement after which it is (default 10).
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `min_delta`: smallest change that counts as an improvement (default 1e-4).
    - `cooldown`: number of epochs after a change in which nothing is counted (default 0).
    - `min_lr`: lowest rate (default 0).

    Raises PlanError for arguments that can't be, and when an epoch's logs lack `monitor`.
    """

    def __init__(
        self, monitor: str = "val_loss", factor: float = 0.1, patience: int = 10, mode: str = "auto",
        min_delta: float = 1e-4, cooldown: int = 0, min_lr: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta)
        self.factor = number("factor", factor, 0, 1)
        self.patience, self.cooldown = whole("patience", patience, 0), whole("cooldown", cooldown, 0)
        self.min_lr = number("min_lr", min_lr, 0)
        self.waited = self.resting = 0

    def on_train_begin(self, logs: Logs) -> None:
        self.best, self.waited, self.resting = inf, 0, 0

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        value, rate = self.value(epoch, logs), self.model.learning_rate
        logs["learning_rate"] = rate
        if self.resting:
            self.resting -= 1
            self.waited = 0
        if self.improves(value):
            self.waited = 0
        elif not self.resting:
            self.waited += 1
            if self.waited >= self.patience and rate > self.min_lr:
                self.model.learning_rate = max(rate * self.factor, self.min_lr)
                self.resting, self.waited = self.cooldown, 0


class LearningRateScheduler(Callback):
    """Set the learning rate of each epoch, as Keras's LearningRateScheduler.

    Arguments:
    - `schedule`: `schedule(epoch, rate)`, with the epoch counted from 0 and the rate so far, returns the new one.

    Raises PlanError if it is no function, or returns no rate.
    """

    def __init__(self, schedule: Callable[[int, float], float]) -> None:
        if not callable(schedule):
            raise PlanError(f"A schedule is a function of epoch and rate, not {schedule!r:.60}.")
        self.schedule = schedule

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self.model.learning_rate = self.schedule(epoch, self.model.learning_rate)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        logs["learning_rate"] = self.model.learning_rate


class TimeLimit(Callback):
    """Stop at the end of the first step that ends more than `seconds` after the start."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, 0.0

    def on_train_begin(self, logs: Logs) -> None:
        self.start = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if time.monotonic() - self.start > self.seconds:
            self.model.stop_training = True


class CSVLogger(Callback):
    """Write a row an epoch to a CSV file, as Keras's CSVLogger: the epoch from 0, then the figures by name.

    Arguments:
    - `filename`: the file.
    - `separator`: between columns (default ",").
    - `append`: go on with an existing file (default False: write it anew).

    Raises RunError if the file can't be written.
    """

    def __init__(self, filename: str | Path, separator: str = ",", append: bool = False) -> None:
        self.filename, self.separator, self.append = Path(filename), separator, append
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_train_begin(self, logs: Logs) -> None:
        self.on_train_end(logs)
        self._columns = self._read_columns() if self.append else []
        try:
            self._file = self.filename.open("a" if self.append else "w", newline="", encoding="utf-8")
        except OSError as error:
            raise RunError(f"CSVLogger can't write {self.filename}: {error.strerror}.") from None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self._file is None:
            return
        writer = csv.writer(self._file, delimiter=self.separator)
        if not self._columns:
            others = [f"val_{name}" for name in logs] if not any(name.startswith("val_") for name in logs) else []
            self._columns = ["epoch", *logs, *(name for name in others if name != "val_seconds")]
            writer.writerow(self._columns)
        writer.writerow([epoch if name == "epoch" else logs.get(name, "NA") for name in self._columns])
        self._file.flush()

    def on_train_end(self, logs: Logs) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_columns(self) -> list[str]:
        try:
            with self.filename.open(newline="", encoding="utf-8") as file:
                return next(csv.reader(file, delimiter=self.separator), [])
        except OSError:
            return []


class TensorBoard(Callback):
    """Write the figures of epochs, and of steps on request, as event files for TensorBoard.

    Training figures go to the folder `train`, those of validation to `validation`, as Keras's TensorBoard has them.
    Needs tensorboardX: pip install 'edgelearn[tensorboard]'.

    Arguments:
    - `log_dir`: the folder (default "logs").
    - `update_freq`: `"epoch"` (default), or a number of steps after which their loss and accuracy are written, too.

    Raises PlanError without tensorboardX, and for another `update_freq`.
    """

    def __init__(self, log_dir: str | Path = "logs", update_freq: str | int = "epoch") -> None:
        if update_freq != "epoch" and (not isinstance(update_freq, int) or update_freq < 1):
            raise PlanError(f"update_freq is 'epoch' or a number of steps, not {update_freq!r:.60}.")
        self.log_dir, self.update_freq = Path(log_dir), update_freq
        self._writers: dict[str, Any] = {}

    def on_train_begin(self, logs: Logs) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            raise PlanError("TensorBoard needs tensorboardX: pip install 'edgelearn[tensorboard]'.") from None

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        step = self.model.position.updates
        if self.update_freq != "epoch" and step % int(self.update_freq) == 0:
            for name, value in logs.items():
                self._writer("train").add_scalar(f"batch_{name}", value, step)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        for name, value in logs.items():
            part = "validation" if name.startswith("val_") else "train"
            self._writer(part).add_scalar(f"epoch_{name.removeprefix('val_')}", value, epoch)
        self._writer("train").add_scalar("epoch_learning_rate", self.model.learning_rate, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Logs) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, part: str) -> Any:
        from tensorboardX import SummaryWriter

        if part not in self._writers:
            self._writers[part] = SummaryWriter(str(self.log_dir / part))
        return self._writers[part]


UNITS = {"training": "steps", "extracting features": "pictures", "compiling kernels": "kernels"}


@dataclass(frozen=True)
class Progress:
    """`done` of `total` in a phase."""

    phase: str
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.done / self.total if self.total else 0.0

    def __str__(self) -> str:
        """ "Training: 3 of 12 steps"."""
        count = f": {self.done:,} of {self.total:,} {UNITS.get(self.phase, '')}".rstrip() if self.total else ""
        return f"{self.phase.capitalize()}{count}"


class TimeLeft(Protocol):
    """Something that knows when a training ends, see edgelearn.train.remaining."""

    @property
    def seconds(self) -> float: ...


REFRESH_SECONDS = 0.25
ROWS = 12  # epochs that a notebook shows


class ProgressBar(Callback):
    """A bar with the time left until the end, compiling, extracting and training together, and rows for epochs.

    `fit` adds one by itself where a person looks on: see its argument `verbose`. It sets `remaining`, the time left.

    Arguments:
    - `every`: epochs from one row to the next (default 1).
    - `bar`: False for rows alone (default True).
    """

    def __init__(self, every: int = 1, bar: bool = True) -> None:
        self.every, self.bar = every, bar
        self.remaining: TimeLeft | None = None
        self._display: Terminal | Notebook | None = None

    def on_compile(self, done: int, total: int) -> None:
        self._show("compiling kernels", "", done, total)

    def on_extract(self, done: int, total: int) -> None:
        self._show("extracting features", "", done, total)

    def on_train_begin(self, logs: Logs) -> None:
        self._show("training", "", self.model.steps_done, self.model.steps_total)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._show("training", f", loss {logs['loss']:.4f}", self.model.steps_done, self.model.steps_total)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if (epoch + 1) % self.every and epoch + 1 != self.model.epochs:
            return
        done, total = f"{epoch + 1}", f"{self.model.epochs}"
        texts = {name: f"{value:.4g}" if name != "seconds" else f"{value:.1f} s" for name, value in logs.items()}
        if isinstance(self._display, Notebook):
            self._display.row({"epoch": f"{done} of {total}", **texts})
            return
        named = [f"{name} {text}" if name != "seconds" else text for name, text in texts.items()]
        row = "  ".join([f"epoch {done:>4}/{total}", *named])
        if self._display is not None:
            self._display.row(row)
        else:
            print(row)

    def on_train_end(self, logs: Logs) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None
        self.remaining = None

    def _show(self, phase: str, detail: str, done: int, total: int) -> None:
        if self.bar:
            if self._display is None:
                self._display = Notebook() if in_notebook() else Terminal()
            left = f", {self.remaining.seconds:.0f} s left" if self.remaining is not None else ""
            self._display.show(phase, detail, done, total, left)


class Terminal:
    """A bar at the bottom, rows above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        left = TextColumn("{task.fields[left]}")
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left
        console = Console(file=getattr(sys.stdout, "stream", None))  # commands escape what others write to stdout
        self._bar: Any = Progress(*columns, console=console, refresh_per_second=4)
        self._bar.start()
        self._phase, self._task = "", None

    def show(self, phase: str, detail: str, done: int, total: int, left: str) -> None:
        if phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._phase, self._task = phase, self._bar.add_task(phase, total=total, completed=done, left="")
        self._bar.update(self._task, description=phase + detail, completed=done, total=total, left=left.lstrip(", "))

    def row(self, text: str) -> None:
        self._bar.console.print(escaped(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


class Notebook:
    """One output of a cell: a table of the last rows, and a bar below it while it runs."""

    def __init__(self) -> None:
        from IPython.display import display

        self._rows: list[Mapping[str, str]] = []
        self._bar, self._shown, self._phase = "", 0.0, ""
        self._handle: Any = display(self._html(), display_id=True)

    def show(self, phase: str, detail: str, done: int, total: int, left: str) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._shown = phase, 0.0
        text = f"{phase}{detail}, {done} of {total}{left}"
        self._bar = f'<progress aria-label="{phase}" value="{done}" max="{max(total, 1)}"></progress> {text}'
        if now - self._shown >= REFRESH_SECONDS or done == total:
            self._shown = now
            self._handle.update(self._html())

    def row(self, cells: Mapping[str, str]) -> None:
        """Show a row with these cells, by the names of their columns."""
        self._rows = [*self._rows[1 - ROWS :], cells]
        self._handle.update(self._html())

    def close(self) -> None:
        self._bar = ""
        self._handle.update(self._html())

    def _html(self) -> Any:
        from IPython.display import HTML

        names = list(dict.fromkeys(name for row in self._rows for name in row))
        rows = [[row.get(name, "") for name in names] for row in self._rows]
        return HTML((Table(names, rows, right=True).to_html() if rows else "") + self._bar)


def in_notebook() -> bool:
    """True in a kernel of Jupyter."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def with_progress(callbacks: Sequence[Callback], verbose: str | int) -> list[Callback]:
    """Return the callbacks, with a ProgressBar as `verbose` of Model.fit asks for, unless there is one.

    "auto" adds a bar where a person looks on: in the main thread of a terminal or a notebook.
    """
    if verbose == "auto":
        main = threading.current_thread() is threading.main_thread()
        verbose = int(main and (in_notebook() or (sys.stdout is not None and sys.stdout.isatty())))
    if not verbose or any(isinstance(callback, ProgressBar) for callback in callbacks):
        return list(callbacks)
    return [*callbacks, ProgressBar(bar=verbose != 2)]


class WatchReconstruction(Callback):
    """Measure how far inverted activations are from the original ones, relative to their largest values.

    `errors` collects (updates so far, {layer: error}) with layers from the last to the first, as they are inverted:
    errors grow in that direction. `fit` adds one of these by itself if its plan inverts anything;
    widgets.plot_reconstruction draws them over depth.

    Arguments:
    - `bound`: largest relative error (default 1e-3).
    - `every`: number of steps between two measurements in an epoch; default: only the epoch's first step.

    Raises ReconstructionError when an error is above `bound`.
    """

    def __init__(self, bound: float = 1e-3, every: int | None = None) -> None:
        self.bound, self.every = bound, every
        self.errors: list[tuple[int, dict[str, float]]] = []

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if batch % self.every if self.every else batch:
            return
        updates, errors = self.model.position.updates, self.model.reconstruction_errors()
        self.errors.append((updates, errors))
        for layer, error in errors.items():
            if not error <= self.bound:
                raise ReconstructionError(
                    f"Update {updates}: the inverse gives '{layer}' back with an error of {error:.1e} of its largest "
                    f"value, above the bound of {self.bound:.1e}, so gradients below it can't be trusted. Sums of its "
                    f"stream have outgrown their number format: lower the learning rate, give couplings a larger "
                    f"step, or recompute '{layer}' instead."
                )


def watched(callbacks: Sequence[Callback], plan: Plan) -> list[Callback]:
    """Return the callbacks, with a WatchReconstruction before them if `plan` inverts activations and none watches."""
    inverts = any(isinstance(strategy, Invert) for strategy in plan.request.strategies.values())
    has_one = any(isinstance(callback, WatchReconstruction) for callback in callbacks)
    return [WatchReconstruction(), *callbacks] if inverts and not has_one else list(callbacks)
