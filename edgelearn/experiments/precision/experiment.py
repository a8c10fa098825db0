"""A training in one precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgelearn import atomic
from edgelearn.experiments.experiment import Log
from edgelearn.experiments.task import TaskExperiment
from edgelearn.lab.runs import Run
from edgelearn.ops import Optimizer
from edgelearn.train import Callback, RangeTrace, TraceRanges
from edgelearn.train.status import Logs

from .config import PrecisionConfig
from .tasks import TASKS

TRACE = "ranges.safetensors"


class KeepTrace(Callback):
    """Writes the trace into a file after each epoch and when training ends, also by an error; a resumed training
    appends to the rows of the steps before it."""

    def __init__(self, trace: TraceRanges, path: Path) -> None:
        self.trace, self.path = trace, path
        self._begun = False

    def on_train_begin(self, logs: Logs) -> None:
        if self.path.exists():
            self.trace.go_on(RangeTrace.read(self.path), self.model.position.updates)
        self._begun = True

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._write()

    def on_train_end(self, logs: Logs) -> None:
        if self._begun:
            self._write()

    def _write(self) -> None:
        atomic.write_bytes(self.path, self.trace.trace.to_bytes())


class PrecisionExperiment(TaskExperiment[PrecisionConfig]):
    """A training of a task in the precision of its configuration."""

    kind, command, config_type, tasks = "precision", "edgelearn precision train", PrecisionConfig, TASKS
    apart = (*TaskExperiment.apart, "trace")

    def compile(self, optimizer: Optimizer) -> None:
        precision = self.config.precision_of(self.model.network)
        compute = self.config.compute
        self.model.compile(optimizer, batchnorm=self.task.batchnorm, precision=precision, compute=compute)
        self.trace = TraceRanges(self.config.trace) if self.config.trace and precision.quantizes else None

    def describe(self) -> dict:
        return super().describe() | {"precision": self.model.precision.to_dict(), "compute": self.config.compute}

    def run(self, run: Run, callbacks: Sequence[Callback] = (), log: Log = print) -> dict | None:
        tracing = [self.trace, KeepTrace(self.trace, run.folder / TRACE)] if self.trace else []
        results = super().run(run, [*callbacks, *tracing], log)
        if tracing:
            log(f"Its tensors: edgelearn precision trace {run.id}")
        return results
