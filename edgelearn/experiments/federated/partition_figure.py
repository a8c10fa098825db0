"""A picture of who has which examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgelearn import atomic
from edgelearn.lab.runs.figures import PALETTE, to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES = 20  # classes with a colour of their own


def plot_partition(counts: np.ndarray, class_names: Sequence[str], path: str | Path | None = None) -> Figure:
    """Draw the examples of each client as a bar of its classes.

    Arguments:
    - `counts`: number of examples by client and class, as `edgelearn.federated.counts` returns it.
    - `class_names`: of the classes.
    - `path`: a PNG to write (default: none).
    """
    import matplotlib
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    colors = PALETTE if classes <= len(PALETTE) else matplotlib.colormaps["tab20"].colors  # pyright: ignore
    bottom = np.zeros(clients)
    for number in range(classes):
        label = class_names[number] if classes <= _SHADES else None
        held = np.flatnonzero(counts[:, number])
        color = colors[number % len(colors)]
        axes.bar(held, counts[held, number], bottom=bottom[held], color=color, label=label)
        bottom += counts[:, number]
    axes.set_xlabel("client")
    axes.set_ylabel("examples")
    axes.set_title(f"{clients} clients, {int(counts.sum()):,} examples, {classes} classes", loc="left")
    if classes <= _SHADES:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    if path is not None:
        atomic.write_bytes(path, to_png(figure))
    return figure
