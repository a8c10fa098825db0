"""What cells return: tables and figures below each other, and trainings that are watched while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

from IPython.display import HTML

from edgelearn.display import Displayed, plural
from edgelearn.errors import EdgelearnError, RunError
from edgelearn.experiments.config import Config
from edgelearn.experiments.experiment import Experiment
from edgelearn.experiments.sweep import Job, find, is_done, train
from edgelearn.lab.runs import Run, RunStore, figures
from edgelearn.lab.runs.tradeoff import Tradeoff
from edgelearn.runtime import DeviceChoice
from edgelearn.tables import Table, Tabular, render
from edgelearn.train import Callback, History
from edgelearn.train.state import Logs
from edgelearn.widgets.pictures import Waiting, device_table, duration, plot_history, show

Part = Any  # a Table, a Figure, an object with _repr_html_, or a line of text


class Shown(Displayed):
    """Parts of a page below each other: tables, figures, pictures and lines of text.

    Arguments:
    - `headline`: the same in a line.
    - `parts`: in this order.
    """

    def __init__(self, headline: str, *parts: Part) -> None:
        self._headline, self.parts = headline, parts

    @property
    def headline(self) -> str:
        return self._headline

    def __repr__(self) -> str:
        return self._headline

    def __str__(self) -> str:
        tables = [part.table() if isinstance(part, Tabular) else part for part in self.parts]
        return render([part if isinstance(part, Table | str) else figures_text(part) for part in tables])

    def _repr_html_(self) -> str:
        return "".join(map(html, self.parts))


def figures_text(part: Part) -> str:
    """The text of a part that isn't one: a figure is described."""
    if isinstance(part, Text):
        return part.text
    return figures.describe(part) if hasattr(part, "get_suptitle") else repr(part)


def html(part: Part) -> str:
    """A part as HTML."""
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    if isinstance(part, HTML):
        return str(part.data)
    if hasattr(part, "get_suptitle"):  # a figure
        return str(show(part).data)
    return part._repr_html_()


_REDRAW_SECONDS = 1.0


class Watching(Waiting, Callback):
    """Shows below a cell, while it trains, which training runs, how far it is, and the curves of all: redrawn once a
    second. Nothing is left of it in the end.

    Arguments:
    - `total`: number of trainings.
    """

    _again = "go on"  # the runs are saved

    def __init__(self, total: int) -> None:
        Waiting.__init__(self, "Loading")
        self.total, self.number, self.name = total, 0, ""
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._share, self._picture, self._drawn, self._next = 0.0, "", 0, 0.0
        for module in "figure", "lines", "ticker":  # before the view's thread: imported by two at once, they fail
            import_module(f"matplotlib.{module}")

    def begin(self, name: str) -> None:
        """The next training begins."""
        self.number, self.name, self._share = self.number + 1, name, 0.0
        self.rows.setdefault(name, [])
        self(f"{self.number} of {self.total}: {name}, loading")

    def on_compile(self, done: int, total: int) -> None:
        self(f"{self.number} of {self.total}: {self.name}, compiling kernels, {done} of {total}")

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        steps, all_steps = self.model.steps_done, self.model.steps_total
        self._share = steps / max(1, all_steps)
        self(f"{self.number} of {self.total}: {self.name}, step {steps:,} of {all_steps:,}")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.rows[self.name] = [*self.rows[self.name], {"epoch": epoch + 1, **logs}]

    def _html(self) -> str:
        share = (max(0, self.number - 1) + self._share) / max(1, self.total)
        seconds = duration(time.monotonic() - self._start)
        bar = f"<progress value='{share:.3f}' max='1' aria-label='Trainings done' style='width: 100%'></progress>"
        return f"<div>{escape(self._waits or self._text)} … {seconds}</div>{bar}{self._curves()}"

    def _curves(self) -> str:
        """The curves, drawn again if an epoch has ended since."""
        rows = {name: found for name, found in self.rows.items() if found}
        count = sum(map(len, rows.values()))
        if count != self._drawn and time.monotonic() >= self._next:
            self._picture, self._drawn = figures.to_img(figures.plot_overlay(rows)), count
            self._next = time.monotonic() + _REDRAW_SECONDS
        return self._picture


def train_all(
    experiment: Experiment, configs: Mapping[str, Sequence[Config]], store: RunStore | str | None = None
) -> dict[str, list[Run]]:
    """Train what the store doesn't have yet, watched below the cell; returns the runs by name.

    Arguments:
    - `configs`: by name, one for each seed.
    - `store`: a RunStore or its folder (default: that of the commands).

    Raises the error of a training that failed, Interrupted after an interrupt: the same call goes on then.
    """
    kept = store if isinstance(store, RunStore) else RunStore(store)
    jobs = [(name, Job(experiment, each, str(kept.root))) for name, each in _pairs(configs)]
    with Watching(len(jobs)) as watching:
        for name, job in jobs:
            watching.begin(name)
            if not is_done(find(job)):
                outcome = train(job, [watching])
                if outcome.results is None:
                    raise RunError(f"'{name}' could not be trained: {outcome.problem}")
    found: dict[str, list[Run]] = {name: [] for name in configs}
    for name, job in jobs:
        if (run := find(job)) is not None:
            found[name].append(run)
    return found


def _pairs(configs: Mapping[str, Sequence[Config]]) -> Iterator[tuple[str, Config]]:
    """(name, configuration), all names with the first seed before the second."""
    most = max(map(len, configs.values()), default=0)
    for number in range(most):
        for name, each in configs.items():
            if number < len(each):
                yield name, each[number]


def tradeoff(
    experiment: Experiment, configs: Mapping[str, Sequence[Config]], store: RunStore | str | None = None
) -> Tradeoff:
    """Train, and show accuracy, memory and time. Arguments and errors: see `train_all`."""
    return Tradeoff.of(train_all(experiment, configs, store))


def or_reason(make: Callable[[], Part]) -> Part:
    """What `make` returns, or the message of the EdgelearnError that it raised."""
    try:
        return make()
    except EdgelearnError as error:
        return str(error).splitlines()[0]


class Text(Displayed):
    """Text of fixed width, folded below a title if it has one.

    Arguments:
    - `text`: the lines.
    - `title`: of what is folded (default: nothing is).
    """

    def __init__(self, text: str, title: str = "") -> None:
        self.text, self.title = text, title

    @property
    def headline(self) -> str:
        return self.title or f"of {plural(len(self.text.splitlines()), 'line')}"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        lines = f"<pre style='overflow-x: auto; max-width: 100%' tabindex='0'>{escape(self.text)}</pre>"
        return f"<details><summary>{escape(self.title)}</summary>{lines}</details>" if self.title else lines


def history_html(history: History) -> str:
    """The curves of a `fit`; its text if it has no epoch."""
    return figures.to_img(plot_history(history)) if history.epoch else f"<pre>{escape(repr(history))}</pre>"


def devices_html(choice: DeviceChoice) -> str:
    """The table of the machine's devices."""
    return str(device_table(choice).data)
