"""Traces of quantised tensors drawn: layers by steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.train import RangeTrace

from .show import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "clipped": "Share of clipped values",
    "signal_to_noise": "Signal to noise (dB)",
    "cosine": "Cosine to the float32 tensor",
    "staleness": "Staleness of the range (widths)",
}


def plot_ranges(trace: RangeTrace, what: str = "cosine", kind: str = "gradients") -> Figure:
    """A heat map of "clipped", "signal_to_noise", "cosine" or "staleness": a row for each tensor of `kind`
    ("weights", "activations" or "gradients"), in the order of a step, and a column for each step traced.

    Raises PlanError for what a trace doesn't have."""
    if what not in TITLES:
        raise PlanError(f"A trace has {', '.join(TITLES)}, not {what!r}.")
    rows = [i for i, name in enumerate(trace.tensors) if name.endswith(f"/{kind}")]
    if not rows or not len(trace.steps):
        raise PlanError(f"The trace has no {kind}: quantise them, and train for a step.")
    values = getattr(trace, what)[:, rows].T
    figure = canvas(9, 1.5 + 0.22 * len(rows))
    axes = figure.add_subplot()
    axes.grid(False)
    image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis")
    axes.set_yticks(range(len(rows)), [trace.tensors[i].rpartition("/")[0] for i in rows], fontsize=8)
    places = np.unique(np.linspace(0, len(trace.steps) - 1, min(8, len(trace.steps))).astype(int))
    axes.set_xticks(places, [str(trace.steps[p]) for p in places], fontsize=10)
    axes.set_xlabel("Step", fontsize=11)
    figure.colorbar(image, ax=axes, label=TITLES[what])
    return figure
