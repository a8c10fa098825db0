"""The figures that results are shown with: confusion matrix, learning curves, memory.

Each function returns a matplotlib Figure and, given a path, also writes it there as a PNG in one step. No
figure touches pyplot, so threads and notebooks may draw at once; a notebook shows `to_svg(figure)`.
Colors follow M. Okabe and K. Ito, "Color Universal Design" (2008), which color-blind readers can tell apart, darker
where a line would be pale on white; shares are one hue from light to dark. matplotlib is imported when the first
figure is drawn.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn import atomic
from edgelearn.display import UNITS
from edgelearn.errors import RunError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
PALETTE = (BLUE, ORANGE, GREEN, "#B0568F", "#A87400", "#2F8FC4", "#000000", "#882255", "#332288", "#7A7A00")
GRAY = "#555555"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_SOLID = 5  # series before the first dashed one
_FEW_EPOCHS = 20
_MAX_CELLS_WITH_TEXT = 12
WIDTH = 9.0  # inches, of figures as wide as the page
_DPI = 110
_TITLE, _LABEL, _TICK = 13, 11, 10
ON_LIGHT = "#010101"  # letters on a light area of a figure, in both themes
_DARK = {  # colours in the dark theme, by those in the light one; others, of pictures and areas, are the same in both
    "#000000": "#e6e6e6", "#555555": "#b0b0b0", "#999999": "#8f8f8f", "#bbbbbb": "#6f6f6f", "#cccccc": "#666666",
    "#dddddd": "#3c3c3c", BLUE.lower(): "#56a0e0", ORANGE.lower(): "#f0803c", GREEN.lower(): "#2fc79b",
    "#b0568f": "#e59bc6", "#a87400": "#f0b32e", "#2f8fc4": "#8fd0f5", "#882255": "#e0709a", "#332288": "#9c8cf0",
    "#7a7a00": "#c9c94a",
}  # fmt: skip


def look(number: int) -> dict[str, Any]:
    """Color, marker and dashes of series `number`, from 0: ten differ in color and marker, and neighbours in color
    also in dashes. The widgets' style sheet and charts have the same ones."""
    place = number % len(PALETTE)
    return {"color": PALETTE[place], "marker": MARKERS[place], "linestyle": "-" if place < _SOLID else "--"}


def describe(figure: Figure) -> str:
    """A figure in words, for readers who can't see it: "Loss over Epoch: train, test"."""

    def words(text: str) -> str:
        return " ".join(text.split())

    panels = []
    for axes in figure.axes:
        sides = [words(label) for label in (axes.get_ylabel(), axes.get_xlabel()) if label]
        names = [words(name) for name in axes.get_legend_handles_labels()[1]]
        parts = [words(axes.get_title()), " over ".join(sides), ", ".join(names)]
        panels.append(": ".join(part for part in parts if part))
    title = words(figure.get_suptitle())
    return f"Chart. {'; '.join(filter(None, [title, *panels]))}"


def plot_confusion(matrix: np.ndarray, class_names: Sequence[str], path: str | Path | None = None) -> Figure:
    """Draw counts [n, n]; a cell's color is its share of the true class, so that class sizes don't matter.

    Raises ShapeError if the matrix doesn't fit the names, RunError if the PNG can't be written.
    """
    matrix = np.asarray(matrix)
    n = len(class_names)
    if n == 0 or matrix.shape != (n, n):
        raise ShapeError(f"A matrix of shape {matrix.shape} doesn't fit {n} class names: it must be [n, n], n >= 1.")
    totals = matrix.sum(axis=1, keepdims=True)
    shares = matrix / np.maximum(totals, 1)
    side = float(np.clip(0.75 * n, 3.2, 12))
    figure = canvas(side + 2.6, side + 1.4)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    bar = figure.colorbar(image, ax=axes, shrink=0.85)
    bar.set_label("Share of the true class (%)", fontsize=_LABEL)
    bar.ax.yaxis.set_major_formatter(_percent_ticks())
    bar.outline.set_visible(False)
    if n <= _MAX_CELLS_WITH_TEXT:
        for (row, column), count in np.ndenumerate(matrix):
            share = shares[row, column]
            text = f"{count:,}\n{100 * share:.0f} %" if count else "0"
            color = "white" if share > 0.55 else ON_LIGHT
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=_TICK)
    axes.set_xticks(range(n), class_names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(n), class_names)
    correct, total = int(np.trace(matrix)), int(matrix.sum())
    accuracy = f" ({100 * correct / total:.1f} %)" if total else ""
    title = f"Confusion matrix: {correct:,} of {total:,} correct{accuracy}"
    style(axes, title, "Predicted class", "True class", grid=False)
    axes.tick_params(labelsize=_TICK if n <= 25 else 6, length=0)
    axes.spines[:].set_visible(False)
    return _written(figure, path)


def plot_learning_curves(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path | None = None,
    *,
    title: str | None = None,
    reference: Mapping[str, float] | None = None,
) -> Figure:
    """Draw loss and accuracy over epochs, train (`loss`, `accuracy`) and test (`val_loss`, `val_accuracy`).

    `rows` is a run's history; a row may lack any of them. `reference` names accuracies in [0, 1] to draw
    as horizontal lines, such as {"published": 670 / 736}.
    Raises RunError if there is no row, or if the PNG can't be written.
    """
    _require_rows([rows])
    figure, loss, accuracy = _curve_panels(title)
    for key, label, color, marker in (("", "train", BLUE, "o"), ("val_", "test", ORANGE, "s")):
        style = {"color": color, "marker": marker, "label": label}
        _curve(loss, rows, f"{key}loss", **style)
        _curve(accuracy, rows, f"{key}accuracy", **style)
    for line, (name, share) in enumerate((reference or {}).items()):
        dashes = ("--", ":", "-.")[line % 3]
        axes_label = f"{name}: {100 * share:.1f} %"
        accuracy.axhline(share, color=GRAY, linestyle=dashes, linewidth=1.4, label=axes_label, zorder=1)
    for axes in (loss, accuracy):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=_TICK, frameon=False)
    return _written(figure, path)


def plot_overlay(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | Path | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the learning curves of several runs, by name, over each other: train thin and dotted.

    Raises RunError if no run has a row, or if the PNG can't be written.
    """
    from matplotlib.lines import Line2D

    _require_rows(list(histories.values()))
    columns = 2 if max(map(len, histories)) > 20 else 4
    figure, loss, accuracy = _curve_panels(title, legend_lines=-(-(len(histories) + 2) // columns))
    handles = []
    for index, (name, rows) in enumerate(histories.items()):
        own = look(index)
        for axes, key in ((loss, "loss"), (accuracy, "accuracy")):
            _curve(axes, rows, key, **own | {"linestyle": ":", "linewidth": 1.2, "markersize": 3})
            _curve(axes, rows, f"val_{key}", **own)
        handles.append(Line2D([], [], **own, markersize=5, linewidth=2, label=name))  # pyright: ignore
    known = {key for rows in histories.values() for row in rows for key in row}
    if known & {"val_loss", "val_accuracy"}:
        handles.append(Line2D([], [], color=GRAY, linewidth=2, label="test"))
    if known & {"loss", "accuracy"}:
        handles.append(Line2D([], [], color=GRAY, linewidth=1.2, linestyle=":", label="train"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=_TICK, frameon=False)
    return _written(figure, path)


def plot_memory(
    planned: int | None, allocated: int | None, process: int | None, path: str | Path | None = None
) -> Figure:
    """Draw memory in bytes as bars: the plan's promise, the device's buffers, and the process's peak.

    None means not measured, and says so. Raises RunError if the PNG can't be written.
    """
    bars = {"planned": planned, "allocated\non the device": allocated, "process, peak": process}
    known = [size for size in bars.values() if size is not None]
    largest = max(known, default=0)
    unit, scale = next(((unit, scale) for unit, scale in UNITS if largest >= scale), UNITS[-1])
    figure = canvas(WIDTH, 2.9)
    axes = figure.add_subplot()
    values = [(size or 0) / scale for size in bars.values()]
    drawn = axes.barh(range(len(bars)), values, color=(BLUE, GREEN, ORANGE), height=0.6)
    decimals = 0 if unit == "bytes" else 1
    texts = ["not measured" if size is None else f"{size / scale:,.{decimals}f} {unit}" for size in bars.values()]
    axes.bar_label(drawn, texts, padding=5, fontsize=_TICK)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * max(*values, 1e-9))
    style(axes, "Memory", f"Size ({unit})", bars=True)
    return _written(figure, path)


def plot_spread(rows: Mapping[str, Sequence[float]], what: str, path: str | Path | None = None) -> Figure:
    """Draw shares in [0, 1] by name, of repeated runs: a dot for each, a bar across at their mean, and down the figure
    a line at the mean of the first. Raises RunError if there is no row, or if the PNG can't be written."""
    if not rows:
        raise RunError("There is nothing to draw yet: no run has finished.")
    figure = canvas(WIDTH, 1.4 + 0.3 * len(rows))
    axes = figure.add_subplot()
    for place, values in enumerate(rows.values()):
        mean = float(np.mean(values))
        axes.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.6, markersize=6, zorder=3)
        axes.plot([mean, mean], [place - 0.3, place + 0.3], color=ORANGE, linewidth=2.5, zorder=4)
        if place == 0:
            axes.axvline(mean, color=GRAY, linestyle="--", linewidth=1.2, zorder=1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(_percent_ticks())
    style(axes, x=what, bars=True)
    return _written(figure, path)


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written to `path` as a PNG file if that is given. Raises RunError if it can't be written."""
    if path is not None:
        atomic.write_bytes(path, to_png(figure))
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as an SVG image without a background, its letters as letters. Shown as an image, it has lighter lines
    and letters where the page is dark (CSS Color Adjustment, "color-scheme")."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "edgelearn", "svg.image_inline": True}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    needless = r"<\?xml.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->|font-family: [^;\"]*;? ?"
    svg = re.sub(needless, "", buffer.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"\n\s*", " ", svg)
    used: dict[str, None] = {"#000000": None}  # that of letters, which don't say it

    def named(found: re.Match) -> str:
        used[found[0]] = None
        return f"var(--c{found[0][1:]})"

    svg = re.sub("|".join(_DARK), named, svg)
    light, dark = (";".join(f"--c{c[1:]}:{_DARK[c] if dark else c}" for c in used) for dark in (False, True))
    rules = (
        f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
        "text{fill:var(--c000000);font-family:system-ui,-apple-system,'Segoe UI',sans-serif}"
    )
    return svg.replace("</style>", f"{rules}</style>", 1)


def to_img(figure: Figure) -> str:
    """The figure as an image of a page, with the text that says what it shows."""
    source = base64.b64encode(to_svg(figure).encode()).decode()
    return f"<img alt='{escape(describe(figure))}' src='data:image/svg+xml;base64,{source}' style='max-width: 100%'>"


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches, that pyplot doesn't know."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1, wspace=0.03)  # inches, inches, share of the width
    return figure


def style(axes: Axes, title: str = "", x: str = "", y: str = "", *, grid: bool = True, bars: bool = False) -> None:
    """Give `axes` a title, labels, and the look of all figures: a light grid, no frame. `bars`: horizontal ones, whose
    names stand on the left in place of an axis."""
    axes.set_title(title, fontsize=_TITLE)
    axes.set_xlabel(x, fontsize=_LABEL)
    axes.set_ylabel(y, fontsize=_LABEL)
    axes.tick_params(labelsize=_TICK)
    axes.spines[["top", "right"]].set_visible(False)
    if bars:
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    if grid:
        axes.grid(axis="x" if bars else "both", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)


def _curve_panels(title: str | None, legend_lines: int = 0) -> tuple[Figure, Axes, Axes]:
    from matplotlib.ticker import MaxNLocator

    figure = canvas(WIDTH, 3.8 + 0.22 * legend_lines)
    loss, accuracy = figure.subplots(1, 2)
    accuracy.yaxis.set_major_formatter(_percent_ticks())
    for axes, title_, label in ((loss, "Loss", "Loss (mean over examples)"), (accuracy, "Accuracy", "Correct (%)")):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        style(axes, title_, "Epoch", label)
    if title:
        figure.suptitle(title, fontsize=_TITLE + 1)
    return figure, loss, accuracy


def _curve(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, **style: Any) -> None:
    points = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
    if not points:
        return
    # Few epochs show each as a marker; of many, about ten carry one, so that lines differ by more than color.
    every = 1 if len(points) <= _FEW_EPOCHS else len(points) // 10
    style = {"linewidth": 2, "markersize": 5, "markevery": every} | style
    axes.plot(*zip(*points, strict=True), **style)


def _percent_ticks() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(xmax=1, symbol="")


def _require_rows(histories: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    if not any(histories):
        raise RunError("There is no epoch to draw yet: the history is empty. Wait for the first one to end.")


def _written(figure: Figure, path: str | Path | None) -> Figure:
    return saved(figure, path)
