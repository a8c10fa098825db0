"""Figures and tables as notebooks save them: PNG and HTML."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from IPython.display import HTML, Image

from edgelearn.lab.runs import figures, tables
from edgelearn.runtime import DeviceChoice
from edgelearn.train import History
from edgelearn.units import UNITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show(figure: Figure) -> Image:
    """The figure as a PNG of at most 256 colors, which takes a third of the space in a saved notebook."""
    from PIL import Image as Pictures

    buffer = io.BytesIO()
    picture = Pictures.open(io.BytesIO(figures.to_png(figure))).convert("RGB")
    picture.quantize(256, dither=Pictures.Dither.NONE).save(buffer, "PNG", optimize=True)
    return Image(buffer.getvalue())


def plot_history(history: History) -> Figure:
    """Draw the learning curves of a `fit`. Raises RunError if it has no epoch."""
    columns = history.history.items()
    rows = [{"epoch": e + 1} | {name: values[i] for name, values in columns} for i, e in enumerate(history.epoch)]
    return figures.plot_learning_curves(rows)


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> HTML:
    """Rows of texts or numbers as a table."""
    return HTML(tables.html(rows, header))


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
