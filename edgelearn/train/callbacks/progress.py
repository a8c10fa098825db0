"""A progress bar in a terminal."""

from __future__ import annotations

from edgelearn.train.status import Logs

from .base import Callback


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
