"""Fine-tuning a pretrained classifier: what the flowers and every other model have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from edgelearn.compile.memory.budget import budgets
from edgelearn.experiments.config import Config, device_setting, seed_setting, setting
from edgelearn.experiments.experiment import Experiment, Log
from edgelearn.experiments.trained import save_model
from edgelearn.extensions import import_instance, is_reference
from edgelearn.lab.runs import Run, figures
from edgelearn.ops import SGD, Adam, AdamW, Optimizer
from edgelearn.train import Callback
from edgelearn.train.phases import Phases
from edgelearn.train.sources import Source
from edgelearn.units import MB

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")
CACHES = ("fp32", "fp16")


@dataclass(frozen=True)
class TransferConfig(Config):
    """Settings of every fine-tuning. Raises ConfigError for an invalid value."""

    epochs: int | None = setting(None, "passes over the examples", minimum=1)
    batch_size: int | None = setting(None, "examples per update", minimum=1)
    micro_batch: int | None = setting(None, "examples at a time on the device, gradients are summed", minimum=1)
    optimizer: str = setting("momentum", "optimizer", choices=OPTIMIZERS, extensible=True)
    learning_rate: float | None = setting(None, "learning rate", above=0)
    label_smoothing: float = setting(0.0, "share of the label given to all classes", minimum=0, maximum=1)
    cache: str | None = setting("fp32", "format of the frozen layers' features kept in memory", choices=CACHES)
    cache_folder: str | None = setting(None, "keep the features in a temporary file in this folder", metavar="DIR")
    budget: int | str | None = setting(
        None, "limit of the memory plan: '64MB', '20MB peak', '8MB stored' or several", check=budgets, metavar="SIZE"
    )
    seed: int = seed_setting()
    device: str | None = device_setting()

    def optimizer_at(self, rate: float) -> Optimizer:
        """The chosen optimizer with this learning rate. Raises ExtensionError if it can't be imported."""
        if is_reference(self.optimizer):
            return import_instance(self.optimizer, Optimizer, rate)
        return {
            "sgd": SGD(rate),
            "momentum": SGD(rate, momentum=0.9),
            "nesterov": SGD(rate, momentum=0.9, nesterov=True),
            "adam": Adam(rate),
            "adamw": AdamW(rate),
        }[self.optimizer]


C = TypeVar("C", bound=TransferConfig)


class TransferExperiment(Experiment[C]):
    """Base of fine-tunings. A subclass loads the examples and the model, and sets these attributes:

    - `train`, `test`: the examples, and `train_labels`, `test_labels`: their int labels.
    - `class_names`: names of the classes.
    - `preprocessing`: how examples are made, as JSON values.
    """

    same: ClassVar = {"data": ("origin", "classes", "train", "test"), "weights": ("sha256",)}
    train: Source
    test: Source
    train_labels: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    preprocessing: dict

    @property
    def cache(self) -> str | None:
        """Format of the cached features, or None."""
        return self.config.cache

    @property
    @abstractmethod
    def resolved_optimizer(self) -> Optimizer:
        """The optimizer with its learning rate."""

    @cached_property
    def phases(self) -> Phases:
        """Memory plans: extracting features, training, testing."""
        lengths = len(self.train), len(self.test)
        phases = self.model.phases(*self._sizes, self.config.budget, self.cache, lengths)
        phases["test"] = self.model.forward_plan(budget=self.config.budget)
        return phases

    @property
    def _sizes(self) -> tuple[int, int]:
        """Examples of a mini-batch and of a micro-batch."""
        size = min(self.config.batch_size or len(self.train), len(self.train))
        return size, min(self.config.micro_batch or size, size)

    def fit(self, callbacks: Sequence[Callback]) -> None:
        c = self.config
        size, micro_batch = self._sizes
        self.model.fit(
            self.train, self.train_labels, size, self.epochs, micro_batch=micro_batch,
            validation_data=(self.test, self.test_labels), callbacks=callbacks, cache=self.cache,
            cache_folder=Path(c.cache_folder) if c.cache_folder else None, budget=c.budget, verbose=0,
        )  # fmt: skip

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        """Test the whole network from the examples on; write results, network and figures."""
        labels, names = self.test_labels, self.class_names
        predicted = self.model.predict(self.test, self.phases["test"].request.micro_batch).argmax(-1)
        results = self.results(int((predicted == labels).sum()), len(labels), run.history()[-1]["val_loss"], seconds)
        save_model(run, self.model, names, self.preprocessing)
        matrix = figures.confusion_matrix(labels.tolist(), predicted.tolist(), len(names))
        figures.plot_confusion(matrix, names, run.folder / "confusion.png")
        figures.plot_learning_curves(run.history(), run.folder / "curves.png", reference=self.reference)
        memory = results["memory"]
        figures.plot_memory(memory["planned"], memory["allocated"], memory["process"], run.folder / "memory.png")
        run.finish(results)
        log(self.report(run))
        return results

    @property
    def reference(self) -> dict[str, float] | None:
        """Accuracies of others to draw beside the learning curve."""
        return None

    @property
    def notes(self) -> list[str]:
        """More lines of the report."""
        return []

    def report(self, run: Run) -> str:
        """The results as text."""
        r = run.record["results"]
        low, high = r["interval"]
        before = run.record.get("before", {}).get("accuracy")
        interval = f"(95 % Wilson interval {low:.2%} to {high:.2%})"
        lines = [f"Test accuracy: {r['correct']}/{r['total']} = {r['accuracy']:.2%} {interval}"]
        if before is not None:
            lines.append(f"Before training: {round(before * r['total'])}/{r['total']} = {before:.2%}")
        lines += self.notes
        planned, allocated, process = (r["memory"][name] / MB for name in ("planned", "allocated", "process"))
        lines.append(
            f"Memory at most: planned {planned:.1f} MB, allocated {allocated:.1f} MB, process {process:.1f} MB"
        )
        lines.append(f"Time: {r['seconds']:.0f} s. Everything is in {run.folder}")
        return "\n".join(lines)
