"""Figures, pictures and tables as notebooks save them, SVG and HTML; and that a cell is working."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import ipywidgets
import numpy as np
from IPython.display import HTML, display

from edgelearn.device import Device
from edgelearn.display import UNITS, plural
from edgelearn.errors import DataError, EdgelearnError, Interrupted, PlanError
from edgelearn.experiments.turn import Turn, told
from edgelearn.lab.runs import figures
from edgelearn.runtime import DeviceChoice
from edgelearn.tables import Table
from edgelearn.train import History, WatchReconstruction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STYLE = Path(__file__).with_name("style.css").read_text()
STYLE = f"<style>{_STYLE}</style>"


class Picture(HTML):
    """An SVG image in a cell or a view, in its own size at most, light or dark as the page, with a text that says what
    it shows, for readers who can't see it.

    Arguments:
    - `svg`: the image.
    - `alt`: the text.
    """

    def __init__(self, svg: str, alt: str) -> None:
        self.svg, self.alt = svg, alt
        source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
        super().__init__(f"<img alt='{escape(alt)}' class='el-figure' src='{source}' style='max-width: 100%'>")

    def __repr__(self) -> str:
        return self.alt


def show(figure: Figure) -> Picture:
    """The figure as a picture of a cell, which a saved notebook keeps."""
    return Picture(figures.to_svg(figure), figures.describe(figure))


class Chart(ipywidgets.HTML):
    """A figure in a view; hidden while there is none. `svg`: the image, empty while there is none."""

    def __init__(self) -> None:
        super().__init__(layout={"display": "none"})
        self.svg = ""

    def draw(self, figure: Figure | None) -> None:
        """Show `figure`, or nothing."""
        picture = show(figure) if figure is not None else None
        self.svg = picture.svg if picture else ""
        self.layout.display = None if picture else "none"
        if picture:
            self.value = str(picture.data)


WRAP = {"flex_flow": "row wrap", "align_items": "center"}  # layout of controls beside each other
GONE = "Run this cell again to get its controls back."


class View(ipywidgets.VBox):
    """Base of views, in the style of style.css. A saved notebook, and one that JupyterLab doesn't trust, shows
    `snapshot` and how to get the controls back instead of them.

    Arguments:
    - `children`: the widgets below each other.
    - `more`: further traits.
    """

    def __init__(self, children: Sequence[ipywidgets.Widget] = (), **more: Any) -> None:
        super().__init__([ipywidgets.HTML(STYLE, layout={"display": "none"}), *children], **more)
        self.add_class("el-view")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def snapshot(self) -> str:
        """The view's state as HTML without controls: its texts and charts."""
        return "".join(f"<div>{text}</div>" for text in _texts(self)) or f"<p>{escape(repr(self))}</p>"

    def _repr_mimebundle_(self, **kwargs) -> dict:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return bundle | {"text/plain": f"{self!r} {GONE}", "text/html": f"{self.snapshot}<p>{GONE}</p>"}


def _texts(box: ipywidgets.Box) -> Iterator[str]:
    """What the HTML in a box says, from top to bottom, without what is hidden."""
    for child in box.children:
        if child.layout.display == "none":
            continue
        if isinstance(child, ipywidgets.HTML) and child.value:
            yield child.value
        elif isinstance(child, ipywidgets.Box):
            yield from _texts(child)


def error_line(error: BaseException | str) -> str:
    """An error as HTML, with its type if it isn't one of edgelearn's own."""
    foreign = isinstance(error, BaseException) and not isinstance(error, EdgelearnError)
    text = f"{type(error).__name__}: {error}" if foreign else str(error)
    return f"<span class='el-fail'>{escape(text)}</span>"


def plot_history(history: History) -> Figure:
    """Draw the learning curves of a `fit`. Raises RunError if it has no epoch."""
    columns = history.history.items()
    rows = [{"epoch": e + 1} | {name: values[i] for name, values in columns} for i, e in enumerate(history.epoch)]
    return figures.plot_learning_curves(rows)


def table(rows: Table | Iterable[Sequence[object]], header: Sequence[str] = ()) -> HTML:
    """A Table, or rows of texts or numbers below a header."""
    return HTML((rows if isinstance(rows, Table) else Table(header, list(rows))).to_html())


def device_table(choice: DeviceChoice) -> HTML:
    """A table of the machine's devices, the chosen one first, with the reason."""
    marks = [f"chosen: {choice.reason}", *("" for _ in choice.others)]
    rows = [
        (d.name, d.platform, d.kind.upper(), d.compute_units, size(d.memory), mark)
        for d, mark in zip((choice.device, *choice.others), marks, strict=True)
    ]
    return table(rows, ("device", "platform", "kind", "compute units", "memory", ""))


def size(nbytes: float) -> str:
    """Bytes in a readable unit: "2.2 MB"."""
    for unit, scale in UNITS[:-1]:
        if nbytes >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes:,.0f} bytes"


def duration(seconds: float) -> str:
    """Seconds in readable units: "12 s", "3 min 05 s", "2 h 10 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


_SECONDS = 1.0


class Waiting:
    """Shows below a cell what it does and for how long, until the block ends; then nothing is left of it. ■ ends the
    cell with a line instead of a traceback (Interrupted).

    >>> with Waiting("Measuring launches") as say:
    ...     compare(NETWORK, plans, progress=say)

    Arguments:
    - `text`: what is done. Calling the object shows another text.
    - `device`: is trained or measured: the block waits until no other training is on it, and lets none begin (default:
      no device; what trains inside by itself waits, and the cell says for whom).
    """

    _again = "start anew"  # what the cell does when it is run again

    def __init__(self, text: str, device: Device | None = None) -> None:
        self._text, self._ended = text, threading.Event()
        self._waits, self._device, self._stack = "", device, ExitStack()

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._shown = display(HTML(self._html()), display_id=True)
        self._thread = threading.Thread(target=self._tick, name="edgelearn-waiting", daemon=True)
        self._thread.start()
        before = told.set(self._told)
        self._stack.callback(lambda: told.reset(before))
        if self._device is not None:
            try:
                self._stack.enter_context(Turn(self._device.id).taken())
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise
        return self

    def _told(self, text: str) -> None:
        self._waits = text.replace("Ctrl-C", "■")

    def __call__(self, text: str) -> None:
        self._text = text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._ended.set()
        self._thread.join()
        self._update("")
        if kind is not None and issubclass(kind, KeyboardInterrupt):  # or that of a `fit` inside
            raise Interrupted(f"{self._text}: stopped. Run this cell again to {self._again}.") from None

    def _html(self) -> str:
        return f"{escape(self._waits or self._text)} … {duration(time.monotonic() - self._start)}"

    def _tick(self) -> None:
        while not self._ended.wait(_SECONDS):
            self._update(self._html())

    def _update(self, html: str) -> None:
        if self._shown is not None:  # None outside of IPython
            self._shown.update(HTML(html))


_GAP, _FONT = 8, 13  # pixels
_JPEG_QUALITY = 85


def contact_sheet(pictures: Sequence[np.ndarray], captions: Sequence[str], columns: int = 8, side: int = 96) -> Picture:
    """Draw pictures in rows.

    Arguments:
    - `pictures`: square, uint8 (n, n, 3).
    - `captions`: one for each, of one or more lines.
    - `columns`: pictures in a row; `side`: pixels of each.

    Raises DataError without pictures, or if the captions aren't as many.
    """
    if not len(pictures) or len(pictures) != len(captions):
        raise DataError(f"A contact sheet needs as many captions as pictures, got {len(captions)} and {len(pictures)}.")
    line = _FONT + 4
    step_x, step_y = side + _GAP, side + _GAP + line * max(caption.count("\n") + 1 for caption in captions)
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    look = f"text{{fill:#212121;font:{_FONT}px system-ui,sans-serif}}"
    dark = "@media (prefers-color-scheme: dark){text{fill:#e6e6e6}}"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{columns * step_x}' height='{rows * step_y}'>"
    parts = [f"{head}<style>{look}{dark}</style>"]
    for index, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = index % columns * step_x, index // columns * step_y
        parts.append(f"<image x='{x}' y='{y}' width='{side}' height='{side}' href='{_jpeg(picture, side)}'/>")
        for number, text in enumerate(caption.split("\n"), start=1):
            narrow = f" textLength='{side}'" if len(text) * _FONT * 0.55 > side else ""  # or it runs into the next one
            parts.append(
                f"<text x='{x}' y='{y + side + number * line - 2}'{narrow} lengthAdjust='spacingAndGlyphs'>"
                f"{escape(text)}</text>"
            )
    names = ", ".join(" ".join(caption.split()) for caption in captions)
    return Picture("".join([*parts, "</svg>"]), f"{plural(len(pictures), 'picture')}: {names}")


def _jpeg(picture: np.ndarray, side: int) -> str:
    """A picture of `side` pixels as the address of an image."""
    from PIL import Image as Pictures

    filter_ = Pictures.Resampling.NEAREST if len(picture) < side else Pictures.Resampling.BILINEAR
    buffer = io.BytesIO()
    Pictures.fromarray(picture).resize((side, side), filter_).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def plot_prediction(
    picture: np.ndarray, class_names: Sequence[str], probabilities: np.ndarray, title: str = ""
) -> Figure:
    """Draw a picture, uint8 (side, side, 3), and the probabilities of the classes, float (classes,)."""
    figure = figures.canvas(figures.WIDTH, 3)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    left.imshow(picture)
    left.set_axis_off()
    left.set_title(title, fontsize=10)
    order = np.argsort(-probabilities)
    colors = [figures.BLUE if place == 0 else "#9ecae1" for place in range(len(order))]
    bars = right.barh(range(len(order)), probabilities[order], color=colors, height=0.65)
    right.bar_label(bars, [f"{100 * probabilities[i]:.1f} %" for i in order], padding=5, fontsize=10)
    right.set_yticks(range(len(order)), [class_names[i] for i in order])
    right.invert_yaxis()
    right.set_xlim(0, 1.2)
    figures.style(right, grid=False, bars=True)
    right.set_xticks([])
    right.spines[:].set_visible(False)
    return figure


EXACT = 1e-9  # the axis is linear below this, so that it shows 0


def plot_reconstruction(watches: Mapping[str, WatchReconstruction]) -> Figure:
    """Draw the errors of inverted activations, a line for each training.

    `watches`: one for each training, by name; drawn are the layers of its last watched step, from the network's last to
    its first. float32 rounds to 6e-8 of the largest value. Dashed: the bound at which training stops. Raises PlanError
    if nothing was inverted, or watched yet.
    """
    if empty := [name for name, watch in watches.items() if not watch.errors or not watch.errors[-1][1]]:
        raise PlanError(f"'{empty[0]}' has no errors: pass it to `fit` of a model whose plan inverts activations.")
    figure = figures.canvas(figures.WIDTH, 3.8)
    axes = figure.add_subplot()
    errors: Mapping[str, float] = {}
    for number, (name, watch) in enumerate(watches.items()):
        updates, errors = watch.errors[-1]
        axes.plot(list(errors.values()), **figures.look(number), markersize=3, label=f"{name}, update {updates}")
    bounds = {watch.bound for watch in watches.values()}
    for bound in bounds:
        axes.axhline(bound, color=figures.GRAY, linestyle="--", linewidth=1.4)
        axes.annotate("training stops", (0, bound), (0, 4), textcoords="offset points", va="bottom", fontsize=10)
    layers = list(errors)
    every = max(1, -(-len(layers) // 30))
    axes.set_yscale("symlog", linthresh=EXACT)
    axes.set_ylim(-EXACT / 2, 10 * max(bounds))
    figures.style(axes, y="Largest error over largest value", grid=False)
    axes.set_xticks(range(0, len(layers), every), layers[::every], rotation=60, ha="right", fontsize=10)
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    return figure
