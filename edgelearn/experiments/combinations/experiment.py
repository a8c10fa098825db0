"""A training of one combination, and what is measured in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Self

from edgelearn.compile import account
from edgelearn.compile.combination import Combination
from edgelearn.errors import RunError
from edgelearn.experiments.experiment import Log
from edgelearn.experiments.task import Task, TaskTraining
from edgelearn.lab import measure
from edgelearn.lab.runs import Run, median
from edgelearn.ops import Optimizer
from edgelearn.train import Callback
from edgelearn.train.phases import Phases
from edgelearn.train.status import Logs

from .config import CombinationConfig


class Measure(Callback):
    """Measures steps and the memory of the process, both without the compilation of kernels: from the second step on.

    - `process`: the most that it held, bytes; None where the system can't forget the peak of earlier trainings.
    - `steps`: seconds of each.
    """

    def __init__(self) -> None:
        self.process: int | None = None
        self.steps: list[float] = []
        self._began = 0.0
        self._first, self._counts = True, False

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if not self._first:
            self.steps.append(time.perf_counter() - self._began)
            return
        self._first = False
        measure.release_free_memory()
        self._counts = measure.restart_peak()

    def on_train_end(self, logs: Logs) -> None:
        if self._counts:
            self.process = measure.peak_resident_bytes()


class CombinationExperiment(TaskTraining[CombinationConfig]):
    """A training of one combination.

    Arguments:
    - `config`: settings of the run.
    - `task`: the data and the model, which was made for the combination.
    - `combination`: the settings that the comparison is about.
    """

    kind, command, config_type = "compare", "the same call of el.compare", CombinationConfig

    @classmethod
    def load(cls, config: CombinationConfig) -> Self:
        """Raises RunError: a network of one's own isn't in the run."""
        raise RunError(f"A training of '{config.network}' goes on by the same call of el.compare.")

    def __init__(self, config: CombinationConfig, task: Task, combination: Combination) -> None:
        self.combination, self.measure = combination, Measure()
        super().__init__(config, task)
        self.model.context.ledger.restart_peak()

    def compile(self, optimizer: Optimizer) -> None:
        """The model was compiled when it was made."""

    @cached_property
    def phases(self) -> Phases:
        lengths = len(self.task.train[1]), len(self.task.test[1])
        return self.model.phases(*self._sizes, self.combination.budget, examples=lengths)

    @property
    def micro_batch(self) -> int | None:
        return self.combination.micro_batch

    def sources(self) -> list[str]:
        return [self.combination.name]

    def fit(self, callbacks: Sequence[Callback]) -> None:
        size, micro_batch = self._sizes
        self.model.fit(
            *self.task.train, size, self.epochs, micro_batch=micro_batch, verbose=0, validation_data=self.task.test,
            callbacks=[*callbacks, self.measure], budget=self.combination.budget,
        )  # fmt: skip

    def memory(self) -> dict:
        accounted = account(self.phases["train"])
        own = {"process": self.measure.process, "stored": accounted.stored, "peak": accounted.peak}
        return super().memory() | own

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        epochs = [row["seconds"] for row in run.history()]
        steps = self.measure.steps or [epochs[-1] / self.task.steps(1)]
        run.update(step_seconds=median(steps), epoch_seconds=median(epochs[1:] or epochs))
        return super().finish(run, seconds, log)
