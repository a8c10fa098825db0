"""The trace of a training's quantized tensors, as a table and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgelearn.errors import PlanError, RunError
from edgelearn.lab.runs import Run, RunStore, figures
from edgelearn.train import RangeTrace

from .experiment import TRACE, PrecisionExperiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "clipped": "Share of clipped values",
    "signal_to_noise": "Signal to noise (dB)",
    "cosine": "Cosine to the float32 tensor",
    "staleness": "Staleness of the range (widths)",
}
HEADER = ("tensor", "least cosine", "at step", "least signal to noise (dB)", "most clipped", "most stale (widths)")


def of_run(store: RunStore, name: str | None = None) -> tuple[Run, RangeTrace]:
    """Return a run and its trace.

    `name` is the run's id or the start of it (default: the newest run with a trace). Raises RunError for a run without
    a trace, FormatError for a damaged trace.
    """
    names = [name] if name else [summary.id for summary in store.list() if summary.kind == PrecisionExperiment.kind]
    for run in map(store.open, names):
        if (run.folder / TRACE).exists():
            return run, RangeTrace.read(run.folder / TRACE)
    raise RunError(
        f"{f'{names[0]} has no' if name else f'No run in {store.root} has a'} trace of its tensors. Make one: "
        f"'edgelearn precision train TASK --trace 10'."
    )


def cells(trace: RangeTrace, kind: str) -> list[tuple[str, ...]]:
    """Rows under HEADER: the worst values of each tensor of `kind` ("weights", "activations", "norm_inputs" or
    "gradients"), in the order of a step. Raises PlanError if the trace has no such tensor."""
    rows = _rows(trace, kind)
    cosine = trace.cosine[:, rows]
    worst = trace.steps[np.where(np.isnan(cosine), np.inf, cosine).argmin(0)]
    least, noisy = np.fmin.reduce(cosine), np.fmin.reduce(trace.signal_to_noise[:, rows])
    clipped, stale = np.fmax.reduce(trace.clipped[:, rows]), np.fmax.reduce(trace.staleness[:, rows])
    return [
        (
            trace.tensors[row], _text(least[i], ".4f"), "" if np.isnan(least[i]) else str(worst[i]),
            _text(noisy[i], ".1f"), _text(clipped[i], ".2%"), _text(stale[i], ".2f"),
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip


def plot_ranges(trace: RangeTrace, what: str = "cosine", kind: str = "gradients") -> Figure:
    """Draw a heat map: a row for each tensor, in the order of a step, a column for each traced step.

    Arguments:
    - `what`: "clipped", "signal_to_noise", "cosine" or "staleness".
    - `kind`: "weights", "activations", "norm_inputs" or "gradients".

    Raises PlanError if the trace doesn't have it.
    """
    if what not in TITLES:
        raise PlanError(f"A trace has {', '.join(TITLES)}, not {what!r}.")
    rows = _rows(trace, kind)
    values = getattr(trace, what)[:, rows].T
    figure = figures.canvas(9, 1.5 + 0.22 * len(rows))
    axes = figure.add_subplot()
    axes.grid(False)
    image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis")
    axes.set_yticks(range(len(rows)), [trace.tensors[i].rpartition("/")[0] for i in rows], fontsize=8)
    places = np.unique(np.linspace(0, len(trace.steps) - 1, min(8, len(trace.steps))).astype(int))
    axes.set_xticks(places, [str(trace.steps[p]) for p in places], fontsize=10)
    axes.set_xlabel("Step", fontsize=11)
    figure.colorbar(image, ax=axes, label=TITLES[what])
    return figure


def _text(value: float, spec: str) -> str:
    return "" if np.isnan(value) else format(value, spec)


def _rows(trace: RangeTrace, kind: str) -> list[int]:
    rows = [i for i, name in enumerate(trace.tensors) if name.endswith(f"/{kind}")]
    if not rows or not len(trace.steps):
        raise PlanError(f"The trace has no {kind}: quantize them, and train for a step.")
    return rows
