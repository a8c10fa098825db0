"""Errors of inverted activations, drawn over the depth of a network."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

from edgelearn.errors import PlanError
from edgelearn.lab.runs import figures
from edgelearn.train import WatchReconstruction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    axes.set_xticks(range(0, len(layers), every), layers[::every], rotation=60, ha="right", fontsize=8)
    axes.set_yscale("symlog", linthresh=EXACT)
    axes.set_ylim(-EXACT / 2, 10 * max(bounds))
    axes.set_ylabel("Largest error over largest value", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    return figure
