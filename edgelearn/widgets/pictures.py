"""Figures, pictures and tables as notebooks save them, PNG and HTML; and that a cell is working."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import cycle
from types import TracebackType
from typing import TYPE_CHECKING

import ipywidgets
import numpy as np
from IPython.display import HTML, Image, display

from edgelearn.display import UNITS
from edgelearn.errors import DataError, EdgelearnError, Interrupted, PlanError
from edgelearn.lab.runs import figures
from edgelearn.runtime import DeviceChoice
from edgelearn.tables import Table
from edgelearn.train import History, WatchReconstruction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show(figure: Figure) -> Image:
    """The figure as a PNG of at most 256 colors, which takes a third of the space in a saved notebook; with a text that
    says what it shows, for readers who can't see it."""
    from PIL import Image as Pictures

    buffer = io.BytesIO()
    picture = Pictures.open(io.BytesIO(figures.to_png(figure))).convert("RGB")
    picture.quantize(256, dither=Pictures.Dither.NONE).save(buffer, "PNG", optimize=True)
    return Image(buffer.getvalue(), alt=figures.describe(figure))


class Chart(ipywidgets.HTML):
    """A figure in a view, in its own size at most, with a text that says what it shows; hidden while there is none."""

    def __init__(self) -> None:
        super().__init__(layout={"display": "none"})
        self.png = b""

    def draw(self, figure: Figure | None) -> None:
        """Show `figure`, or nothing."""
        self.png = figures.to_png(figure) if figure is not None else b""
        self.layout.display = None if self.png else "none"
        if figure is not None:
            source = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
            self.value = f"<img alt='{escape(figures.describe(figure))}' src='{source}' style='max-width: 100%'>"


GONE = "Run this cell again to get its controls back."


class View(ipywidgets.VBox):
    """Base of views. A saved notebook, and one that JupyterLab doesn't trust, shows `snapshot` and how to get the
    controls back instead of them."""

    @property
    def snapshot(self) -> str:
        """The view's state as HTML without controls."""
        return f"<p>{escape(repr(self))}</p>"

    def _repr_mimebundle_(self, **kwargs) -> dict:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return bundle | {"text/plain": f"{self!r} {GONE}", "text/html": f"{self.snapshot}<p>{GONE}</p>"}


def error_line(error: BaseException | str) -> str:
    """An error as HTML, with its type if it isn't one of edgelearn's own."""
    foreign = isinstance(error, BaseException) and not isinstance(error, EdgelearnError)
    text = f"{type(error).__name__}: {error}" if foreign else str(error)
    return f"<span style='color: {figures.ORANGE}'>{escape(text)}</span>"


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
    """

    def __init__(self, text: str) -> None:
        self._text, self._ended = text, threading.Event()

    def __enter__(self) -> Waiting:
        self._start = time.monotonic()
        self._shown = display(HTML(self._html()), display_id=True)
        self._thread = threading.Thread(target=self._tick, name="edgelearn-waiting", daemon=True)
        self._thread.start()
        return self

    def __call__(self, text: str) -> None:
        self._text = text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._update("")
        if kind is KeyboardInterrupt:
            raise Interrupted(f"{self._text}: stopped. Run this cell again to start anew.") from None

    def _html(self) -> str:
        return f"{escape(self._text)} … {duration(time.monotonic() - self._start)}"

    def _tick(self) -> None:
        while not self._ended.wait(_SECONDS):
            self._update(self._html())

    def _update(self, html: str) -> None:
        if self._shown is not None:  # None outside of IPython
            self._shown.update(HTML(html))


_GAP, _FONT = 8, 12  # pixels
_JPEG_QUALITY = 85


def contact_sheet(pictures: Sequence[np.ndarray], captions: Sequence[str], columns: int = 8, side: int = 96) -> Image:
    """Draw pictures in rows, as a JPEG.

    Arguments:
    - `pictures`: square, uint8 (n, n, 3).
    - `captions`: one for each, of one or more lines.
    - `columns`: pictures in a row; `side`: pixels of each.

    Raises DataError without pictures, or if the captions aren't as many.
    """
    from PIL import Image as Pictures
    from PIL import ImageDraw, ImageFont

    if not len(pictures) or len(pictures) != len(captions):
        raise DataError(f"A contact sheet needs as many captions as pictures, got {len(captions)} and {len(pictures)}.")
    line = _FONT + 4
    step_x, step_y = side + _GAP, side + _GAP + line * max(caption.count("\n") + 1 for caption in captions)
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    sheet = Pictures.new("RGB", (_GAP + columns * step_x, _GAP + rows * step_y), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT)
    for index, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = _GAP + index % columns * step_x, _GAP + index // columns * step_y
        filter_ = Pictures.Resampling.NEAREST if len(picture) < side else Pictures.Resampling.BILINEAR
        sheet.paste(Pictures.fromarray(picture).resize((side, side), filter_), (x, y))
        for number, text in enumerate(caption.split("\n")):
            pen.text((x, y + side + 2 + number * line), text, fill="black", font=font)
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    names = ", ".join(" ".join(caption.split()) for caption in captions)
    alt = f"{len(pictures)} picture{'s' * (len(pictures) > 1)}: {names}"
    return Image(buffer.getvalue(), format="jpeg", alt=alt)


def plot_prediction(
    picture: np.ndarray, class_names: Sequence[str], probabilities: np.ndarray, title: str = ""
) -> Figure:
    """Draw a picture, uint8 (side, side, 3), and the probabilities of the classes, float (classes,)."""
    figure = figures.canvas(8, 3)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    left.imshow(picture)
    left.set_axis_off()
    left.set_title(title, fontsize=11)
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
    figure = figures.canvas(9, 3.8)
    axes = figure.add_subplot()
    errors: Mapping[str, float] = {}
    for (name, watch), color in zip(watches.items(), cycle(figures.PALETTE)):
        updates, errors = watch.errors[-1]
        axes.plot(list(errors.values()), ".-", color=color, label=f"{name}, update {updates}")
    bounds = {watch.bound for watch in watches.values()}
    for bound in bounds:
        axes.axhline(bound, color=figures.GRAY, linestyle="--", linewidth=1.4)
        axes.annotate("training stops", (0, bound), (0, 4), textcoords="offset points", va="bottom", fontsize=10)
    layers = list(errors)
    every = max(1, -(-len(layers) // 30))
    axes.set_yscale("symlog", linthresh=EXACT)
    axes.set_ylim(-EXACT / 2, 10 * max(bounds))
    figures.style(axes, y="Largest error over largest value", grid=False)
    axes.set_xticks(range(0, len(layers), every), layers[::every], rotation=60, ha="right", fontsize=8)
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    return figure
