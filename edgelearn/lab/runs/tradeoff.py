"""Accuracy, memory and time of trainings in one figure, a point for all seeds of a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn.display import MB, megabytes, plural
from edgelearn.errors import RunError
from edgelearn.statistics import interval, median, wilson_interval
from edgelearn.tables import Table, Tabular

from . import figures
from .run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

APART = ("seed", "device", "data", "download")  # settings in which runs of one point may differ
PAGE = "/edgelearn/runs/"  # of a run, in the workbench
COMPARE = "/edgelearn/compare?"  # of several runs
_AROUND = "display: inline-block; line-height: 0; max-width: 100%; position: relative"  # just as large as the image
_ON_MARK = "height: 1.6em; position: absolute; transform: translate(-50%, -50%); width: 1.6em"
_LETTERS = 28  # of a name, before it is cut in the figure


@dataclass(frozen=True)
class Point:
    """A configuration that was trained.

    Arguments:
    - `name`: the settings in which it differs from the others.
    - `runs`: its runs, one for each seed.
    - `accuracy`: (mean, low, high) on the test examples: Student's 95 % interval over the seeds, of one seed Wilson's
      over the examples.
    - `bytes`: device memory as planned, the largest of the runs.
    - `seconds`: median of an epoch, without the first, which compiles kernels.
    """

    name: str
    runs: tuple[Run, ...]
    accuracy: tuple[float, float, float]
    bytes: int
    seconds: float

    @property
    def page(self) -> str:
        """The workbench's page of the run, or of the comparison of its seeds."""
        ids = [run.id for run in self.runs]
        return f"{PAGE}{ids[0]}" if len(ids) == 1 else COMPARE + "&".join(f"id={each}" for each in ids)

    @classmethod
    def of(cls, name: str, runs: Iterable[Run]) -> Point:
        """The point of finished runs. Raises RunError for a run without accuracy, memory or history."""
        found = tuple(runs)
        shares, sizes, times = [], [], []
        for run in found:
            results, rows = run.record.get("results") or {}, run.history()
            try:
                shares.append(float(results["accuracy"]))
                sizes.append(int(results["memory"]["planned"]))
                epochs = [float(row["seconds"]) for row in rows]
            except (KeyError, TypeError) as error:
                raise RunError(f"{run.id} has no {error}: only finished runs of classifiers can be drawn.") from None
            times += epochs[1:] or epochs
        if len(shares) > 1:
            spread = interval(shares)
            accuracy = spread.mean, spread.mean - spread.margin, spread.mean + spread.margin
        else:
            results = found[0].record["results"]
            low = high = shares[0]
            if "correct" in results:
                low, high = wilson_interval(results["correct"], results["total"])
            accuracy = shares[0], low, high
        return cls(name, found, accuracy, max(sizes), median(times) if times else 0.0)


@dataclass(frozen=True, repr=False)
class Tradeoff(Tabular):
    """The price of accuracy: trainings by test accuracy, planned memory and time of an epoch.

    Arguments:
    - `points`: in the order of the table.
    """

    points: tuple[Point, ...]

    @classmethod
    def of(cls, runs: Iterable[Run] | Mapping[str, Iterable[Run]]) -> Tradeoff:
        """Gather finished runs; those that differ in their seed alone are one point.

        Arguments:
        - `runs`: of a store, a comparison or a sweep; or runs by the name of their point.

        Raises RunError if no run has finished.
        """
        named: dict[Any, Iterable[Run]] = dict(runs) if isinstance(runs, Mapping) else {**_grouped(runs)}
        points = []
        for name, members in named.items():
            if finished := [run for run in members if run.status == "finished"]:
                points.append(Point.of(name, finished))
        if not points:
            raise RunError("There is nothing to draw: no run has finished. Train one, or let it finish.")
        return cls(tuple(points))

    @property
    def headline(self) -> str:
        best = max(self.points, key=lambda point: point.accuracy[0])
        return f"of {plural(len(self.points), 'configuration')}; the best: '{best.name}' with {best.accuracy[0]:.1%}"

    def table(self) -> Table:
        """A row for each point."""
        rows = []
        for point in self.points:
            mean, low, high = point.accuracy
            rows.append((
                point.name, f"{100 * mean:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", str(len(point.runs)),
                f"{point.bytes / MB:,.2f}", f"{point.seconds:,.2f}",
            ))  # fmt: skip
        header = ("", "accuracy (%)", "95 %", "seeds", "memory (MB)", "an epoch (s)")
        return Table(header, rows, right=True)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw accuracy over memory and over the time of an epoch, a mark for each point; write a PNG to `path`."""
        figure = figures.canvas(figures.WIDTH, 3.6 + 0.16 * len(self.points))
        left, right = figure.subplots(1, 2, sharey=True)
        for number, point in enumerate(self.points):
            mean, low, high = (100 * share for share in point.accuracy)
            look: dict[str, Any] = figures.look(number) | {"linestyle": "none"}
            name = point.name if len(point.name) <= _LETTERS else f"{point.name[: _LETTERS - 1]}…"
            for axes, x in ((left, point.bytes / MB), (right, point.seconds)):
                axes.errorbar(
                    [x], [mean], [[mean - low], [high - mean]], **look, capsize=3, markersize=8,
                    label=name if axes is left else None,
                )  # fmt: skip
        figures.style(left, "", "Planned memory (MB)", "Test accuracy (%)")
        figures.style(right, "", "Time of an epoch (s)", "")
        for axes in (left, right):
            axes.margins(x=0.15)
            axes.set_xlim(left=0)
        figure.legend(loc="outside upper center", ncols=3, fontsize=10, frameon=False)
        return figures.saved(figure, path)

    def _marks(self, figure: Figure) -> str:
        """Links that lie on the marks of the drawn figure, at shares of its width and height."""
        figure.draw_without_rendering()  # places the axes
        links = []
        for axes, of in zip(figure.axes, (lambda p: p.bytes / MB, lambda p: p.seconds), strict=True):
            for point in self.points:
                pixel = axes.transData.transform((of(point), 100 * point.accuracy[0]))
                x, y = 100 * figure.transFigure.inverted().transform(pixel)
                text = escape(
                    f"{point.name}: {point.accuracy[0]:.1%}, {megabytes(point.bytes)}, {point.seconds:,.2f} s"
                )
                links.append(
                    f"<a href='{escape(point.page)}' title='{text}' aria-label='{text}' "
                    f"style='{_ON_MARK}; left: {x:.2f}%; top: {100 - y:.2f}%'></a>"
                )
        return "".join(links)

    def _repr_html_(self) -> str:
        """The figure, whose marks lead to their runs, the table, and a link to each run."""
        figure = self.plot()
        picture = f"<div style='{_AROUND}'>{figures.to_img(figure)}{self._marks(figure)}</div>"
        links = "".join(
            f"<li>{escape(point.name)}: "
            + ", ".join(f'<a href="{PAGE}{escape(run.id)}">{escape(run.id)}</a>' for run in point.runs)
            + "</li>"
            for point in self.points
        )
        runs = f"<details><summary>Runs</summary><ul>{links}</ul></details>"
        return picture + self.table().to_html() + runs


def tradeoff(runs: Iterable[Run] | Mapping[str, Iterable[Run]]) -> Tradeoff:
    """Accuracy, memory and time of finished trainings of classifiers, in one figure and a table; those that differ in
    their seed alone are one mark with an interval.

    >>> store = RunStore()
    >>> el.tradeoff(store.open(summary.id) for summary in store.list() if summary.kind == "precision")

    Arguments:
    - `runs`: of a store, a comparison or a sweep; or runs by the name of their mark.

    Raises RunError if no run has finished, or one has no accuracy.
    """
    return Tradeoff.of(runs)


def _grouped(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by the settings in which they differ."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = {key: value for key, value in run.config.items() if key not in APART}
        groups.setdefault(json.dumps([run.record["kind"], same], sort_keys=True), []).append(run)
    configs = [members[0].config for members in groups.values()]
    keys = dict.fromkeys(key for config in configs for key in config if key not in APART)
    differing = [key for key in keys if len({json.dumps(config.get(key)) for config in configs}) > 1]
    named: dict[str, list[Run]] = {}
    for members in groups.values():
        config = members[0].config
        name = ", ".join(f"{key} {_text(config[key])}" for key in differing if key in config)
        named.setdefault(name or str(members[0].record["kind"]), []).extend(members)
    return named


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
