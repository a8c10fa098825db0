"""Train in the precision that a form's controls choose, and compare the results."""

from __future__ import annotations

import threading
from functools import partial
from html import escape

import ipywidgets

from edgelearn.errors import EdgelearnError
from edgelearn.experiments.precision import PrecisionConfig, PrecisionExperiment
from edgelearn.lab.runs import RunStore, figures

from .form import Form
from .worker import Worker, WorkerState


class BitsView(ipywidgets.VBox):
    """A form for bits and observer. Each change trains in that precision, after the training that runs; of several
    changes meanwhile, the last. The kernel stays free.

    Arguments:
    - `store`: where the runs are kept.
    - `base`: the initial precision, and all other settings.
    """

    def __init__(self, store: RunStore, base: PrecisionConfig) -> None:
        self.store = store
        self.accuracies: dict[PrecisionConfig, float] = {}  # in the order of training
        self._form = Form(base, ("weights", "activations", "gradients", "observer"))
        self._wanted: PrecisionConfig | None = None
        self._shown = base
        self._worker: Worker | None = None
        self._lock = threading.RLock()
        self._bar = ipywidgets.FloatProgress(max=1.0)
        self._status = ipywidgets.HTML("Move a slider.")
        self._chart = ipywidgets.Image(format="png", layout={"display": "none"})
        super().__init__([self._form, ipywidgets.HBox([self._bar, self._status]), self._chart])
        self._form.observe(lambda change: self.train(), "config")

    @property
    def config(self) -> PrecisionConfig:
        """The configuration that the form shows."""
        return PrecisionConfig.from_dict(self._form.config.to_dict())

    def train(self) -> None:
        """Train in the precision that the form shows, or show its result if it is trained already."""
        with self._lock:
            self._wanted = self.config
            if self._worker is None:
                self._next()

    def wait(self) -> None:
        """Wait until nothing is being trained."""
        while (worker := self._worker) is not None:
            worker.wait()

    def close(self) -> None:
        """Remove the view; its training stops after the current step and is saved."""
        with self._lock:
            self._wanted = None
            if self._worker is not None:
                self._worker.stop()
        super().close()

    def update(self) -> None:
        """Show how the training goes on; called on its thread."""
        worker = self._worker
        if worker is None:
            return
        self._bar.value, self._status.value = worker.progress.share, f"{worker.progress} …"
        if worker.state is not WorkerState.RUNNING:
            if worker.results is not None:
                self.accuracies[self._shown] = worker.results["accuracy"]
                self._draw()
            elif (error := worker.error) is not None:
                text = str(error) if isinstance(error, EdgelearnError) else f"{type(error).__name__}: {error}"
                self._status.value = f"<span style='color: {figures.ORANGE}'>{escape(text)}</span>"
            with self._lock:
                self._worker = None
                self._next()

    def _next(self) -> None:
        """Train, or show, what was asked for last."""
        if self._wanted is None:
            return
        self._shown, self._wanted = self._wanted, None
        if self._shown in self.accuracies:
            self._draw()
            return
        self._worker = Worker(partial(PrecisionExperiment.load, self._shown), self.store)
        self._worker.watch(self)
        self._worker.start()

    def _draw(self) -> None:
        accuracy = self.accuracies[self._shown]
        self._bar.value = 1.0
        self._status.value = f"{name_of(self._shown)}: <b>{100 * accuracy:.1f} %</b> of the test pictures"
        rows = {name_of(config): [share] for config, share in self.accuracies.items()}
        self._chart.value = figures.to_png(figures.plot_spread(rows, "Test accuracy (%)"))
        self._chart.layout.display = None


def name_of(config: PrecisionConfig) -> str:
    """ "8/8/4 in-hindsight": bits of weights, activations and gradients, and the observer."""
    return f"{config.weights}/{config.activations}/{config.gradients} {config.observer}"
