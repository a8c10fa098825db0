"""Figures of plans: memory by role, and over the layers of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgelearn.compile import Plan
from edgelearn.compile.explain import explain
from edgelearn.lab.runs import figures
from edgelearn.launch import Role
from edgelearn.units import MB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {
    Role.PARAMETER: figures.BLUE,
    Role.CONSTANT: "#56B4E9",
    Role.GRADIENT: figures.ORANGE,
    Role.OPTIMIZER: "#E69F00",
    Role.PREPARED: "#CC79A7",
    Role.INPUT: "#999999",
    Role.CONTROL: "#000000",
    Role.TEMPORARY: figures.GREEN,
}

_PURPOSES = {
    "stored": figures.BLUE,
    "recomputed": figures.ORANGE,
    "inverted": figures.GREEN,
    "compressed": "#56B4E9",
    "restored": "#E69F00",
    "workspace": "#BBBBBB",
}


def plot_roles(plans: Mapping[str, Plan]) -> Figure:
    """Draw the planned memory of each plan by role, one bar a plan. `plans`: by the names shown."""
    figure = figures.canvas(9, 1.5 + 0.55 * len(plans))
    axes = figure.add_subplot()
    names = list(plans)
    left = [0.0] * len(names)
    for role, color in _COLORS.items():
        sizes = [plans[name].bytes_by_role.get(role, 0) / MB for name in names]
        if max(sizes) < 0.005 * max(plan.peak_bytes for plan in plans.values()) / MB:
            continue  # too small to see
        axes.barh(names, sizes, left=left, color=color, height=0.6, label=role.value)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    for index, name in enumerate(names):
        axes.text(left[index], index, f"  {plans[name].peak_bytes / MB:,.2f} MB", va="center", fontsize=10)
    axes.set_xlim(0, 1.18 * max(left))
    axes.invert_yaxis()
    axes.set_xlabel("Planned device memory (MB)", fontsize=11)
    axes.tick_params(labelsize=10)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=4, fontsize=10, frameon=False)
    return figure


def plot_timeline(plan: Plan, title: str = "") -> Figure:
    """Draw the peak memory of activations and workspace in each layer of a micro-batch, forward and backward, by
    purpose: stored, restored, workspace. Dashed: the arena that they share; dotted: what is offloaded by then. A plan
    with an optimizer shows a training step, another one a prediction."""
    moments = explain(plan).timeline
    figure = figures.canvas(9, 3.8)
    axes = figure.add_subplot()
    bottom = [0.0] * len(moments)
    for purpose, color in _PURPOSES.items():
        sizes = [moment.purposes.get(purpose, 0) / 1e6 for moment in moments]
        if any(sizes):
            axes.bar(range(len(moments)), sizes, bottom=bottom, width=1.0, color=color, label=purpose)
        bottom = [a + b for a, b in zip(bottom, sizes, strict=True)]
    if any(moment.paged for moment in moments):
        paged = [moment.paged / 1e6 for moment in moments]
        axes.step(range(len(moments)), paged, ":", where="mid", color=figures.GRAY, label="offloaded")
    arena, dashed = plan.arena_bytes / 1e6, {"color": figures.GRAY, "linestyle": "--", "linewidth": 1.4}
    axes.axhline(arena, **dashed)
    text = f"the arena they share: {arena:,.2f} MB"
    axes.annotate(text, (0, arena), (0, 4), textcoords="offset points", va="bottom", fontsize=10)
    turn = sum(moment.forward for moment in moments) - 0.5
    if turn < len(moments) - 1:
        axes.axvline(turn, **dashed)
        axes.annotate(
            "backward pass →", (turn, 0.97), (5, 0), ("data", "axes fraction"), "offset points", va="top", fontsize=10
        )
    every = max(1, -(-len(moments) // 40))
    axes.set_xticks(
        range(0, len(moments), every), [m.layer for m in moments][::every], rotation=60, ha="right", fontsize=8
    )
    axes.set_xlim(-0.6, len(moments) - 0.4)
    axes.set_ylim(0, 1.25 * max(arena, *bottom))
    axes.set_ylabel("Alive at most (MB)", fontsize=11)
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    return figure
