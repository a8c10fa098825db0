"""A progress bar, in a terminal or a notebook."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from edgelearn.display import escaped
from edgelearn.train.status import Logs

from .base import Callback
from .remaining import Progress

REFRESH_SECONDS = 0.25
ROWS = 12  # epochs that a notebook shows


class ProgressBar(Callback):
    """A bar with the time left for compiling, extracting and training, and rows for epochs.

    `fit` adds one by itself where a person looks on: see its argument `verbose`.

    Arguments:
    - `every`: epochs from one row to the next (default 1).
    - `bar`: False for rows alone (default True).
    """

    def __init__(self, every: int = 1, bar: bool = True) -> None:
        self.every, self.bar = every, bar
        self._display: Display | None = None

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
        row = f"epoch {epoch + 1:>4}/{self.model.epochs}"
        for name, value in logs.items():
            row += f"  {name} {value:.4g}" if name != "seconds" else f"  {value:.1f} s"
        if self._display is not None:
            self._display.row(row)
        else:
            print(row)

    def on_train_end(self, logs: Logs) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _show(self, phase: str, detail: str, done: int, total: int) -> None:
        if self.bar:
            if self._display is None:
                self._display = Notebook() if in_notebook() else Terminal()
            self._display.show(phase, detail, done, total)


class Display(Protocol):
    """Where a bar is drawn."""

    def show(self, phase: str, detail: str, done: int, total: int) -> None: ...

    def row(self, text: str) -> None: ...

    def close(self) -> None: ...


class Terminal:
    """A bar at the bottom, rows above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        console = Console(file=getattr(sys.stdout, "stream", None))  # commands escape what others write to stdout
        self._bar: Any = Progress(*columns, console=console, refresh_per_second=4)
        self._bar.start()
        self._phase, self._task = "", None

    def show(self, phase: str, detail: str, done: int, total: int) -> None:
        if phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._phase, self._task = phase, self._bar.add_task(phase, total=total, completed=done)
        self._bar.update(self._task, description=phase + detail, completed=done, total=total)

    def row(self, text: str) -> None:
        self._bar.console.print(escaped(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


class Notebook:
    """One output of a cell: the last rows, and a bar below them while it runs."""

    def __init__(self) -> None:
        from IPython.display import display

        self._rows: list[str] = []
        self._bar, self._shown, self._progress = "", 0.0, Progress("")
        self._handle: Any = display(self._html(), display_id=True)

    def show(self, phase: str, detail: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase != self._progress.phase:
            self._shown = 0.0
        self._progress = self._progress.next(phase, done, total)
        left = self._progress.seconds_left
        text = f"{phase}{detail}, {done} of {total}" + (f", {left:.0f} s left" if left else "")
        self._bar = f'<progress value="{done}" max="{max(total, 1)}"></progress> {text}'
        if now - self._shown >= REFRESH_SECONDS or done == total:
            self._shown = now
            self._handle.update(self._html())

    def row(self, text: str) -> None:
        self._rows = [*self._rows[1 - ROWS :], text]
        self._handle.update(self._html())

    def close(self) -> None:
        self._bar = ""
        self._handle.update(self._html())

    def _html(self) -> Any:
        from html import escape

        from IPython.display import HTML

        return HTML(f"<pre>{escape(chr(10).join(self._rows))}</pre>{self._bar}")


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
