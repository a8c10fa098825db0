"""Steps of a bundle beside the same steps in Python: losses and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.display import plural
from edgelearn.lab.runs import figures
from edgelearn.tables import Table, Tabular
from edgelearn.train import Model

from .linked import emulate
from .native import NativeBundle
from .write import Bundle

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Trial(Tabular):
    """Steps of a bundle and of Python, from the same weights on the same examples.

    Arguments:
    - `target`: the bundle's.
    - `python`, `bundle`: loss of each step.
    - `python_seconds`, `bundle_seconds`: median of a step; the bundle's None where it was emulated.
    """

    target: str
    python: list[float]
    bundle: list[float]
    python_seconds: float
    bundle_seconds: float | None

    @property
    def difference(self) -> float:
        """The largest relative difference of losses."""
        python, bundle = np.array(self.python), np.array(self.bundle)
        return float(np.max(np.abs(bundle - python) / np.abs(python)))

    @property
    def headline(self) -> str:
        steps = plural(len(self.python), "step")
        return f"of {steps} by target {self.target}: losses within {self.difference:.1e} of Python's"

    def table(self) -> Table:
        """A row for Python and one for the bundle."""
        rows = [
            (name, f"{losses[0]:.6f}", f"{losses[-1]:.6f}", "–" if seconds is None else f"{1e3 * seconds:.2f}")
            for name, losses, seconds in (
                ("Python", self.python, self.python_seconds), (self.target, self.bundle, self.bundle_seconds)
            )
        ]  # fmt: skip
        notes = [f"Largest relative difference of losses: {self.difference:.1e}."]
        if self.bundle_seconds is None:
            notes.append("Emulation has bits and bytes, and no times.")
        header = ("steps of", "first loss", "last loss", "ms a step")
        return Table(header, rows, plural(len(self.python), "step"), notes, right=True)

    def plot(self) -> Figure:
        """Draw both losses over the steps."""
        figure = figures.canvas(7, 3)
        axes = figure.add_subplot()
        steps = range(1, len(self.python) + 1)
        axes.plot(steps, self.python, color=figures.BLUE, linewidth=4, alpha=0.5, label="Python")
        axes.plot(steps, self.bundle, "o", color=figures.ORANGE, markersize=5, label=f"target {self.target}")
        axes.legend(fontsize=10, frameon=False)
        figures.style(axes, "Loss of each step", "Step", "Loss")
        return figure


def try_out(model: Model, bundle: Bundle, x: np.ndarray, y: np.ndarray, rate: float = 0.01) -> Trial:
    """Train the same mini-batches by a bundle and in Python, from the model's weights.

    A bundle for cortex-m runs in an emulated board, others are compiled for this machine.

    Arguments:
    - `model`: that the bundle was made of.
    - `bundle`: as `el.bundle` returned it.
    - `x`, `y`: examples and class numbers; each of the bundle's mini-batches is a step, and a rest is left out.
    - `rate`: learning rate (default 0.01).

    Raises DeviceError if it can't be built, saying what to install.
    """
    request = bundle.plan.request
    size = request.batch_size
    parts = [slice(at, at + size) for at in range(0, len(x) - size + 1, size)]
    x, y = np.asarray(x, np.float32), np.asarray(y, np.int32)
    if bundle.target == "cortex-m":
        losses, seconds = emulate(bundle, x[: parts[-1].stop], y[: parts[-1].stop], rate), None
    else:
        with NativeBundle(bundle.folder) as native:
            losses, seconds = _timed(lambda part: native.train_step(x[part], y[part], rate)[0], parts)
    with model.trainer(size, request.micro_batch) as trainer:
        trainer.learning_rate = rate
        python, python_seconds = _timed(lambda part: float(trainer.step(x[part], y[part])["loss"]), parts)
    return Trial(bundle.target, python, losses, python_seconds, seconds)


def _timed(step: Callable[[slice], float], parts: list[slice]) -> tuple[list[float], float]:
    """(losses, median seconds) of steps."""
    losses, times = [], []
    for part in parts:
        begin = time.perf_counter()
        losses.append(step(part))
        times.append(time.perf_counter() - begin)
    return losses, float(np.median(times))
