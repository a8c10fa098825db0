"""Draw the pictures of the manual from committed figures: python tools/draw_docs.py

Writes docs/pictures/*.svg from docs/pictures/figures.json (measured figures with command, device and date) and from
edgelearn/experiments/precision_expected.json.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
FIGURES = json.loads((PICTURES / "figures.json").read_text())
EXPECTED = ROOT / "edgelearn" / "experiments" / "precision_expected.json"

OURS, OTHERS, THIRD = "#2a6f97", "#b0b7bf", "#d9a441"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "edgelearn", "font.family": "sans-serif", "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def draw_memory() -> None:
    """Peak of the activations, memory of the process and time of a step, for one network under several plans."""
    found = FIGURES["memory"]
    names = [row[0] for row in found["rows"]]
    colors = [OTHERS if name.startswith("PyTorch") else OURS for name in names]
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.1), sharey=True, layout="constrained")
    for column, panel in enumerate(panels, start=1):
        values = [row[column] for row in found["rows"]]
        panel.barh(names, [value or 0 for value in values], color=colors)
        for at, value in enumerate(values):
            text = "not reported" if value is None else f"{value:g}"
            panel.text(value or 0, at, f" {text}", va="center", color="#777" if value is None else "black", fontsize=9)
        panel.set_title(found["columns"][column], fontsize=10)
        panel.set_xlim(0, 1.2 * max(value or 0 for value in values))
        panel.xaxis.set_visible(False)
        panel.spines["bottom"].set_visible(False)
        panel.tick_params(left=False)
    panels[0].invert_yaxis()
    figure.suptitle(found["title"], fontsize=11)
    save(figure, "memory")


def draw_speed() -> None:
    """Times of PyTorch and Keras as multiples of edgelearn's."""
    found = FIGURES["speed"]
    names = [row[0] for row in found["rows"]]
    figure, panel = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for number, (contender, color) in enumerate(zip(found["columns"][1:], (OURS, OTHERS, THIRD), strict=True)):
        ratios = [row[1 + number] / row[1] for row in found["rows"]]
        places = [at + 0.26 * (number - 1) for at in range(len(names))]
        panel.barh(places, ratios, height=0.24, color=color, label=contender)
        for place, ratio, row in zip(places, ratios, found["rows"], strict=True):
            panel.text(ratio, place, f" {row[1 + number]:g} ms", va="center", fontsize=8)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xlabel("time over edgelearn's (shorter is faster)")
    panel.set_xlim(0, 2.65)
    figure.suptitle(found["title"], fontsize=11)
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    save(figure, "speed")


def draw_precision() -> None:
    """Test accuracy in float32 and with everything in 8 bits."""
    tasks = json.loads(EXPECTED.read_text())["tasks"]
    arms = {
        "float32": "fp32",
        "8 bits, in hindsight": "everything, in-hindsight",
        "8 bits, current range": "everything, current",
    }
    figure, panel = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for number, ((label, variant), color) in enumerate(zip(arms.items(), (OTHERS, OURS, THIRD), strict=True)):
        for at, task in enumerate(tasks.values()):
            values = [100 * value for value in task["variants"][variant]["accuracies"].values()]
            place = at + 0.25 * (number - 1)
            panel.bar(place, mean(values), 0.22, color=color, label=label if not at else None)
            panel.errorbar(place, mean(values), stdev(values), color="black", linewidth=1, capsize=2)
            panel.text(place, mean(values) + 2.5, f"{mean(values):.1f}", ha="center", fontsize=8)
    panel.set_xticks(range(len(tasks)), tasks)
    panel.set_ylim(0, 110)
    panel.set_ylabel("test accuracy, %")
    panel.legend(frameon=False, ncols=3, loc="upper center")
    panel.set_title("Training with weights, activations and gradients in 8 bits", fontsize=11)
    save(figure, "precision")


def draw_flowers() -> None:
    """Each seed of each optimizer against the published figure."""
    found = FIGURES["flowers"]
    figure, panel = plt.subplots(figsize=(8, 2.2), layout="constrained")
    for at, (_, values) in enumerate(found["rows"]):
        panel.plot(values, [at] * len(values), "o", color=OURS, alpha=0.6)
        panel.plot([median(values)] * 2, [at - 0.3, at + 0.3], color=OURS, linewidth=2)
    panel.axvline(found["published"], color=THIRD)
    panel.text(found["published"], -0.6, f" published: {found['published']}", color=THIRD, va="bottom")
    panel.set_yticks(range(len(found["rows"])), [name for name, _ in found["rows"]])
    panel.set_ylim(len(found["rows"]) - 0.5, -0.9)
    panel.set_title(f"{found['title']} (bars: medians)", fontsize=11)
    save(figure, "flowers")


def draw_keywords() -> None:
    """Errors before and after enrolment."""
    found = FIGURES["keywords"]
    figure, panel = plt.subplots(figsize=(8, 2.6), layout="constrained")
    for number, (label, color) in enumerate(zip(found["columns"][1:], (OTHERS, OURS), strict=True)):
        values = [row[1 + number] for row in found["rows"]]
        places = [at + 0.36 * (number - 0.5) for at in range(len(values))]
        panel.barh(places, values, height=0.34, color=color, label=label)
        for place, value in zip(places, values, strict=True):
            panel.text(value, place, f" {value:.2f}", va="center", fontsize=8)
    panel.set_yticks(range(len(found["rows"])), [row[0] for row in found["rows"]])
    panel.invert_yaxis()
    panel.xaxis.set_visible(False)
    panel.spines["bottom"].set_visible(False)
    panel.set_title(found["title"], fontsize=11)
    panel.legend(frameon=False, loc="upper right")
    save(figure, "keywords")


ROOMS = {
    "cli": "commands", "widgets": "views in notebooks", "workbench": "home and runs in the browser",
    "experiments": "a technique a module, with its claims", "bundles": "trainings as C sources",
    "keywords": "learn words from few clips", "federated": "many clients, one model",
    "lab": "benchmarks, profiles, tuning, run store", "train": "Model, Trainer, callbacks, sources",
    "interop": "file formats", "runtime": "contexts, buffers, kernels, Session",
    "compile": "lowering, precision, memory → Plan", "data": "pictures, recordings", "models": "networks",
    "graph": "networks as data", "tuned": "measured choices", "ops": "layers, losses, optimizers",
    "kernels": "OpenCL C", "device": "facts of a device", "launch": "launches as data",
}  # fmt: skip


def levels() -> list[list[str]]:
    """The rooms of the package, each above all that it may import: the order that lint-imports holds the code to."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = ([name.strip(" ()") for name in layer.split("|")] for layer in contracts[0]["layers"])
    beside = [names + ["kernels"] * ("ops" in names) for names in layers]
    return [[name for name in names if name in ROOMS] for names in beside]


def draw_architecture() -> None:
    """The rooms of the package, each above those that it may import."""
    figure, panel = plt.subplots(figsize=(9, 5.6), layout="constrained")
    panel.axis("off")
    rows = levels()
    engine = next(level for level, names in enumerate(rows) if "runtime" in names)
    training = next(level for level, names in enumerate(rows) if "federated" in names)
    for level, names in enumerate(rows):
        width = 10 / len(names)
        for number, name in enumerate(names):
            color = "#e3eef5" if level >= engine else "#f5efe0" if level >= training else "#eeeeee"
            box = FancyBboxPatch(
                (number * width + 0.08, -level), width - 0.16, 0.74, boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=color, edgecolor="#8899a6",
            )  # fmt: skip
            panel.add_patch(box)
            middle = number * width + width / 2
            panel.text(middle, 0.47 - level, name, ha="center", va="center", fontweight="bold")
            panel.text(middle, 0.2 - level, ROOMS[name], ha="center", va="center", fontsize=8.5, color="#333")
    arrow = {"arrowstyle": "->", "color": "#556"}
    panel.annotate("", (10.3, -len(rows) + 1), (10.3, 0.7), arrowprops=arrow, annotation_clip=False)
    panel.text(10.42, -len(rows) / 2 + 0.8, "imports", rotation=270, va="center", color="#556")
    panel.set_xlim(0, 10.7)
    panel.set_ylim(-len(rows) + 0.9, 0.9)
    save(figure, "architecture")


def draw_step() -> None:
    """From a network to a step."""
    boxes = (
        ("Network", "named ops,\ntrainable names"),
        ("stages", "convolution +\nBatchNorm + activation"),
        ("launches", "forward, backward,\nupdate"),
        ("Plan", "every launch, an offset\nfor every buffer"),
        ("Session", "allocates, compiles,\nruns steps"),
    )
    arrows = ("fuse", "lower", "place", "run")
    figure, panel = plt.subplots(figsize=(10, 1.5), layout="constrained")
    panel.axis("off")
    for number, (name, what) in enumerate(boxes):
        x = number * 2.45
        box = FancyBboxPatch(
            (x, 0), 1.75, 1, boxstyle="round,pad=0,rounding_size=0.08", facecolor="#e3eef5", edgecolor="#8899a6"
        )
        panel.add_patch(box)
        panel.text(x + 0.875, 0.76, name, ha="center", va="center", fontweight="bold")
        panel.text(x + 0.875, 0.34, what, ha="center", va="center", fontsize=8.5)
        if number:
            panel.annotate("", (x - 0.05, 0.5), (x - 0.65, 0.5), arrowprops={"arrowstyle": "->", "color": "#556"})
            panel.text(x - 0.35, 0.66, arrows[number - 1], ha="center", fontsize=8.5, color="#556")
    panel.set_xlim(-0.05, 11.6)
    panel.set_ylim(-0.05, 1.05)
    save(figure, "step")


def save(figure: plt.Figure, name: str) -> None:
    """Write an SVG that is the same every time."""
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    plt.rcParams.update(STYLE)
    for draw in (
        draw_memory, draw_speed, draw_precision, draw_flowers, draw_keywords, draw_architecture, draw_step,
    ):  # fmt: skip
        draw()
