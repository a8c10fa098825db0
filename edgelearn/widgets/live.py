"""Curves that move: an interactive chart of one training or of several runs, drawn in the browser by Plotly.

Plotly's JavaScript comes from its Python package, so that charts work offline. It is sent once for a kernel, compressed
(1.5 MB), and not with each chart; a chart sends points alone. A saved notebook shows a picture instead (see View)."""

from __future__ import annotations

import gzip
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import numpy as np
import traitlets

from edgelearn.errors import RunError
from edgelearn.lab.runs import Run, compare, figures
from edgelearn.lab.runs.page import extremes

from .pictures import View, show
from .worker import Curve

_FOLDER = Path(__file__).parent
_PANELS = (
    {"key": "loss", "title": "Loss", "label": "Loss (mean over examples)", "scale": 1.0, "log": True},
    {"key": "accuracy", "title": "Accuracy", "label": "Correct (%)", "scale": 100.0, "log": False},
)
_SECONDS = 0.8  # between two drawings
_POINTS = 400  # of a curve: of more epochs, the lowest and the highest of every stretch
_NAME = 60  # characters of a run's name in a legend


class Library(ipywidgets.Widget):
    """Plotly's JavaScript, compressed by gzip, for all charts of a kernel."""

    _model_module = traitlets.Unicode("@jupyter-widgets/base").tag(sync=True)
    _model_module_version = traitlets.Unicode("2.0.0").tag(sync=True)
    _model_name = traitlets.Unicode("WidgetModel").tag(sync=True)
    code = traitlets.Bytes().tag(sync=True)

    @classmethod
    @cache
    def shared(cls) -> Library:
        """The one of this process. Raises RunError without the package plotly."""
        try:
            found = files("plotly") / "package_data" / "plotly.min.js"
            return cls(code=gzip.compress(found.read_bytes(), 1))
        except (ImportError, OSError) as error:
            raise RunError(
                f"Live charts need the package plotly ({error}): pip install 'edgelearn[notebooks]'"
            ) from None


class LiveChart(anywidget.AnyWidget):
    """Curves side by side, with hover, zoom, a logarithmic scale and smoothing. Keys: arrows move, + and - zoom, Home
    shows everything.

    Traits:
    - `panels`: {"title", "label", "log"} of each.
    - `series`: {"name", "panel", "color" (number), "kind" ("steps" or "epochs"), "dash", "x", "y" (float32 as bytes)}.
    - `alt`: what it shows, in words.
    """

    _esm = _FOLDER / "live.js"
    _css = _FOLDER / "style.css"
    library = traitlets.Instance(Library).tag(sync=True, **ipywidgets.widget_serialization)
    panels = traitlets.List().tag(sync=True)
    series = traitlets.List().tag(sync=True)
    alt = traitlets.Unicode().tag(sync=True)

    def __init__(self) -> None:
        super().__init__(library=Library.shared(), layout={"width": "auto"})
        self._columns: dict[tuple[str, str], _Column] = {}

    def draw(
        self, histories: Mapping[str, Sequence[Mapping[str, Any]]], steps: Mapping[str, Curve] | None = None
    ) -> None:
        """Show the epochs of runs, by name; of a single one also its steps. Hidden while there is no point."""
        series, panels, words = [], [], []
        for panel in _PANELS:
            lines = self._lines(panel, histories, steps or {})
            if lines:
                last = [f"{line.name} {line.y[-1]:.4g}" for line in lines]
                words.append(f"{panel['label']} over epochs, last: {', '.join(last)}")
                series += [line.to_dict(len(panels)) for line in lines]
                panels.append({name: panel[name] for name in ("title", "label", "log")})
        with self.hold_sync():
            self.panels, self.series, self.alt = panels, series, f"Chart. {'; '.join(words)}"

    def _lines(
        self, panel: Mapping[str, Any], histories: Mapping[str, Sequence[Mapping[str, Any]]], steps: Mapping[str, Curve]
    ) -> list[_Line]:
        """The curves of a panel: of one training in a colour each, of several in a colour for each training."""

        def axes(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            places = extremes(y, _POINTS)
            return x[places], np.float32(panel["scale"]) * y[places]

        def column(name: str, key: str) -> tuple[np.ndarray, np.ndarray]:
            return axes(*self._columns.setdefault((name, key), _Column()).read(histories[name], key))

        key, lines = panel["key"], []
        if key in steps:
            points = np.array(steps[key].points, np.float32).reshape(-1, 2)
            lines.append(_Line("each step", *axes(*points.T), kind="steps"))
        for number, name in enumerate(histories):
            train, test = column(name, key), column(name, f"val_{key}")
            if len(histories) == 1:
                lines += [_Line("train", *train), _Line("test", *test, 1)]
            else:
                dash = "solid" if figures.look(number)["linestyle"] == "-" else "dash"
                lines += [_Line(name, *test, number, dash=dash), _Line(f"{name}, train", *train, number, dash="dot")]
        return [line for line in lines if len(line.x)]


class LiveTraining(LiveChart):
    """The chart of one training below its state and a bar, above its tables: one widget, whose drawing is one
    message to the browser.

    Traits:
    - `status`: the state in words.
    - `share`: of the training, from 0 to 1, that the bar shows; `outcome`: "success", "danger" or empty, its colour.
    - `tables`: HTML, beside each other.
    """

    status = traitlets.Unicode().tag(sync=True)
    share = traitlets.Float(0.0).tag(sync=True)
    outcome = traitlets.Unicode().tag(sync=True)
    tables = traitlets.List(traitlets.Unicode()).tag(sync=True)


@dataclass(frozen=True)
class _Line:
    """A curve through points (x, y), float32. `color`: number of its colour."""

    name: str
    x: np.ndarray
    y: np.ndarray
    color: int = 0
    kind: str = "epochs"
    dash: str = "solid"

    def to_dict(self, panel: int) -> dict[str, Any]:
        look = {"name": self.name, "color": self.color, "kind": self.kind, "dash": self.dash}
        return {"panel": panel, **look, "x": self.x.tobytes(), "y": self.y.tobytes()}


class _Column:
    """Points (epoch, value) of a column of a history that grows: rows are read once."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._x, self._y, self._count, self._last = array("f"), array("f"), 0, None

    def read(self, rows: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
        """The points, float32, after the rows that are new."""
        if self._count and (len(rows) < self._count or rows[self._count - 1] is not self._last):
            self._begin()  # another history
        for row in rows[self._count :]:
            if row.get(name) is not None:
                self._x.append(row["epoch"])
                self._y.append(row[name])
        if rows:
            self._count, self._last = len(rows), rows[-1]
        return np.array(self._x, np.float32), np.array(self._y, np.float32)


def names_of(runs: Sequence[Run]) -> list[str]:
    """A name for each run: the settings that differ, such as "gradients 4, seed 1"; its id where none does."""
    comparison = compare(runs)
    names = []
    for config in comparison.configs:
        text = ", ".join(f"{key.rpartition('.')[2]} {config.get(key, '–')}" for key in comparison.differences)
        names.append(text if len(text) <= _NAME else f"{text[: _NAME - 1]}…")
    alike = {name for name in names if names.count(name) > 1 or not name}
    return [f"{name} {run.id}".strip() if name in alike else name for name, run in zip(names, runs, strict=True)]


class CurvesView(View):
    """The learning curves of runs over each other, named by what differs between them. Those that are still running are
    read again and drawn each second.

    Arguments:
    - `runs`: at least one.

    Raises RunError if there are none.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.names, self.chart = list(runs), names_of(runs), LiveChart()
        self._closed = threading.Event()
        super().__init__([self.chart])
        self.draw()
        if self._running():
            threading.Thread(target=self._follow, name="edgelearn-curves", daemon=True).start()

    def __repr__(self) -> str:
        return f"<CurvesView: {', '.join(self.names)}>"

    @property
    def snapshot(self) -> str:
        histories = self._histories()
        return str(show(figures.plot_overlay(histories)).data) if any(histories.values()) else super().snapshot

    def draw(self) -> None:
        """Read the runs and show their curves."""
        self.chart.draw(self._histories())

    def close(self) -> None:
        """Remove the view."""
        if hasattr(self, "_closed"):  # Python closes a view whose constructor failed
            self._closed.set()
        super().close()

    def _histories(self) -> dict[str, list[dict[str, Any]]]:
        return {name: run.history() for name, run in zip(self.names, self.runs, strict=True)}

    def _running(self) -> bool:
        return any(run.status == "running" for run in self.runs)

    def _follow(self) -> None:
        while self._running() and not self._closed.wait(_SECONDS):
            self.draw()
        if not self._closed.is_set():
            self.draw()
