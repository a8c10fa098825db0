"""Sliders over bit-widths: each setting is trained and drawn beside those before it."""

from __future__ import annotations

import threading
from html import escape

import ipywidgets

from edgelearn.errors import EdgelearnError
from edgelearn.experiments.quantized_backprop import ESTIMATORS, PrecisionConfig, PrecisionJob
from edgelearn.runs import RunStore, figures
from edgelearn.train import Callback, Model

BITS = ("2", "3", "4", "5", "6", "8", "16", "fp16", "fp32")


class BitsView(ipywidgets.VBox):
    """Trains `base` with the bits and the estimator that the sliders say, whenever one of them is moved, into runs of
    `store`; what was trained before is shown at once. The notebook's kernel stays free meanwhile."""

    def __init__(self, store: RunStore, base: PrecisionConfig) -> None:
        self.store, self.base = store, base
        self.accuracies: dict[PrecisionConfig, float] = {}  # in the order in which they were asked for
        self._wanted: PrecisionConfig | None = None
        self._model: Model | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._sliders = {
            name: ipywidgets.SelectionSlider(
                options=list(dict.fromkeys((*BITS, getattr(base, name)))),
                value=getattr(base, name),
                description=name.capitalize(),
                continuous_update=False,
            )
            for name in ("weights", "activations", "gradients")
        }
        self._sliders["estimator"] = ipywidgets.Dropdown(
            options=list(ESTIMATORS), value=base.estimator, description="Ranges"
        )
        self._bar = ipywidgets.FloatProgress(max=1.0)
        self._status = ipywidgets.HTML("Move a slider.")
        self._chart = ipywidgets.Image(format="png", layout={"display": "none"})
        controls = ipywidgets.VBox([*self._sliders.values(), ipywidgets.HBox([self._bar, self._status])])
        super().__init__([controls, self._chart])
        for slider in self._sliders.values():
            slider.observe(self._moved, "value")

    @property
    def config(self) -> PrecisionConfig:
        """What the sliders say."""
        values = {name: slider.value for name, slider in self._sliders.items()}
        return PrecisionConfig(**self.base.to_dict() | values)

    def train(self) -> None:
        """Train what the sliders say, after what is being trained; of several that wait, the last."""
        with self._lock:
            self._wanted = self.config
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="edgelearn-bits", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Until nothing is being trained."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Take the view away; a training that it shows stops after its step."""
        with self._lock:
            self._wanted = None
        if self._model is not None:
            self._model.stop_training = True
        super().close()

    def _moved(self, change: dict) -> None:
        self.train()

    def _next(self) -> PrecisionConfig | None:
        with self._lock:
            config, self._wanted = self._wanted, None
            if config is None:
                self._thread = None
            return config

    def _work(self) -> None:
        while (config := self._next()) is not None:
            try:
                if config not in self.accuracies:
                    self._status.value = "Loading …"
                    results = PrecisionJob.start(config, self.store, [_Progress(self)], lambda text: None)
                    if results is None:
                        continue
                    self.accuracies[config] = results["accuracy"]
                self._draw(config)
            except Exception as error:  # whatever it is, the sliders must go on working
                said = str(error) if isinstance(error, EdgelearnError) else f"{type(error).__name__}: {error}"
                self._status.value = f"<span style='color: {figures.ORANGE}'>{escape(said)}</span>"

    def _draw(self, config: PrecisionConfig) -> None:
        self._bar.value = 1.0
        self._status.value = f"{name_of(config)}: <b>{100 * self.accuracies[config]:.1f} %</b> of the test pictures"
        rows = {name_of(known): [share] for known, share in self.accuracies.items()}
        self._chart.value = figures.to_png(figures.plot_spread(rows, "Test accuracy (%)"))
        self._chart.layout.display = None


class _Progress(Callback):
    def __init__(self, view: BitsView) -> None:
        self.view = view

    def on_compile(self, done: int, total: int) -> None:
        self.view._status.value = f"Compiling kernels: {done} of {total}"

    def on_train_begin(self, logs) -> None:
        self.view._model = self.model
        self.view._status.value = "Training …"

    def on_train_batch_end(self, batch: int, logs) -> None:
        self.view._bar.value = self.model.steps_done / self.model.steps_total


def name_of(config: PrecisionConfig) -> str:
    """ "8/8/4 in-hindsight": bits of weights, activations and gradients, and where ranges come from."""
    return f"{config.weights}/{config.activations}/{config.gradients} {config.estimator}"
