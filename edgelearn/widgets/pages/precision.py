"""Number formats: what they move, what they cost in accuracy, memory and time, and why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from edgelearn.data.flowers import SHARE, thicket_flowers
from edgelearn.experiments import precision_claims
from edgelearn.experiments.claims import Verdicts, check_claims
from edgelearn.experiments.precision import (
    FLOAT,
    TASKS,
    PrecisionConfig,
    PrecisionExperiment,
    expected,
    of_run,
    plot_ranges,
)
from edgelearn.extensions import check_name
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.tradeoff import Tradeoff
from edgelearn.runtime import choose_device
from edgelearn.tables import Table
from edgelearn.train import RangeTrace
from edgelearn.widgets.pictures import Waiting, contact_sheet
from edgelearn.widgets.views import BitsView

from .shown import Shown, tradeoff, train_all

_SHEET = 16  # pictures
_TRACED = 10  # steps between two rows of a trace


def thicket() -> Shown:
    """Show some pictures of the thicket, the sample that number formats differ on."""
    dataset = thicket_flowers()
    shown = np.random.default_rng(0).permutation(len(dataset))[:_SHEET]
    names = [dataset.class_names[dataset.labels[i]] for i in shown]
    sheet = contact_sheet([dataset.image(int(i), 96) for i in shown], names)
    lines = f"{dataset.description} {SHARE:.0%} to train with, the others to test with."
    return Shown(dataset.description, lines, sheet)


def traffic(layers: int = 6) -> Shown:
    """The paper's formula for the bytes that a layer moves: its published figures as claims, and the first `layers`
    convolutions of ResNet-18."""
    checked = check_claims(precision_claims.COSTS, precision_claims.networks)
    costs = precision_claims.cost_table(precision_claims.networks()["ResNet-18"])
    return Shown(checked.headline, checked, Table(costs.header, costs.rows[:layers], "ResNet-18, KiB"))


def counters(networks: bool = True, device: str | None = None) -> Verdicts:
    """Check that launches move the bytes of the formula, and steps those of their plan.

    Arguments:
    - `networks`: of the paper, too (default True; a few seconds).
    - `device`: part of a device's name (default: the best one).
    """
    chosen = choose_device(device).device
    with Waiting("Counting the bytes of steps"):
        found = check_claims(precision_claims.COUNTERS if networks else (), lambda: chosen)
        return found + check_claims(precision_claims.STEPS, lambda: precision_claims.count_steps(chosen))


def precision(
    bits: Sequence[str | int] = (FLOAT, 8, 5, 4), observers: Sequence[str] = ("in-hindsight",),
    seeds: Sequence[int] = (0,), task: str = "thicket", store: RunStore | str | None = None, **settings: Any,
) -> Tradeoff:  # fmt: skip
    """Train a task with weights, activations and gradients in each of these formats; show accuracy, memory and time.
    Finished trainings are not repeated.

    Arguments:
    - `bits`: "fp32", "fp16" or 2 to 16 (default float32, 8, 5 and 4).
    - `observers`: where ranges come from (default in hindsight); of "fp32" and "fp16" it makes no difference.
    - `seeds`: a training of each with each (default one, 0).
    - `task`: see `edgelearn precision train` (default "thicket").
    - `store`: a RunStore or its folder (default: that of the commands).
    - `settings`: others of PrecisionConfig, such as `epochs`.
    """
    configs = {}
    for each in map(str, bits):
        for observer in observers if each.isdigit() else observers[:1]:
            name = (
                f"{each} bits, {observer}" if each.isdigit() else {"fp32": "float32", "fp16": "float16"}.get(each, each)
            )
            configs[name] = [
                PrecisionConfig(task, each, each, each, observer=observer, seed=seed, **settings) for seed in seeds
            ]
    return tradeoff(PrecisionExperiment, configs, store)


class Tensors(Shown):
    """Traced tensors of a training: a heat map, and the first whose rounded values point elsewhere.

    - `trace`: the RangeTrace.
    """

    def __init__(self, trace: RangeTrace, what: str, kind: str) -> None:
        self.trace = trace
        step, tensor = trace.first_divergence() or (None, "")
        found = "No tensor diverges." if step is None else f"The first tensor that diverges: {tensor}, at step {step}."
        super().__init__(found, found, plot_ranges(trace, what, kind))


def trace(
    bits: str | int, what: str = "signal_to_noise", kind: str = "activations", task: str = "sample", epochs: int = 2,
    store: RunStore | str | None = None, **settings: Any,
) -> Tensors:  # fmt: skip
    """Train a task with everything in `bits` bits, recording every tensor, and draw them.

    Arguments:
    - `what`, `kind`: see widgets.plot_ranges.
    - `settings`: others of PrecisionConfig, such as `observer`.
    """
    every = {"weights": str(bits), "activations": str(bits), "gradients": str(bits), "trace": _TRACED}
    config = PrecisionConfig(task, epochs=epochs, **every, **settings)
    kept = store if isinstance(store, RunStore) else RunStore(store)
    (run,) = train_all(PrecisionExperiment, {f"{bits} bits": [config]}, kept)[f"{bits} bits"]
    return Tensors(of_run(kept, run.id)[1], what, kind)


@lru_cache(maxsize=1)
def _known() -> dict[str, list]:
    return {task: rows for task in TASKS if (rows := expected(task))}


def published() -> Shown:
    """Accuracies of whole trainings on real data that the package keeps, with their claims."""
    known, parts = {task: rows for task, rows in _known().items() if task != "thicket"}, []
    for task, rows in known.items():
        shown = precision_claims.results_table(rows)
        title = f"{TASKS[task].title}; {rows[0].devices[0]}"
        parts.append(Table(shown.header[:4], [row[:4] for row in shown.rows], title))
        parts.append(check_claims(precision_claims.ACCURACY, lambda rows=rows: rows))
    return Shown(f"Figures of {', '.join(known)}", *parts)


def accuracies(task: str) -> Shown:
    """A chart of the accuracies that the package keeps of a task. Raises UsageError if it keeps none."""
    check_name(task, _known(), "task")
    return Shown(TASKS[task].title, precision_claims.plot(_known()[task]))


def bits(epochs: int = 3, task: str = "sample", store: RunStore | str | None = None) -> BitsView:
    """Sliders over bits that train at once: see BitsView."""
    kept = store if isinstance(store, RunStore) else RunStore(store)
    return BitsView(kept, PrecisionConfig(task, epochs=epochs))
