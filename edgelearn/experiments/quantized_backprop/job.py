"""One training in one precision, from data to a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgelearn.experiments.job import Say
from edgelearn.experiments.task import TaskJob
from edgelearn.ops import Optimizer
from edgelearn.runs import Run, atomic
from edgelearn.train import Callback, RangeTrace, TraceRanges
from edgelearn.train.callbacks import Logs

from .config import PrecisionConfig
from .tasks import TASKS

TRACE = "ranges.safetensors"


class KeepTrace(Callback):
    """Writes what `trace` has collected beside each checkpoint and when training ends, however it ends; and goes on
    with what was written before the step that training begins with. One that ends before it begins writes nothing."""

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


class PrecisionJob(TaskJob):
    """Trainings that differ in their precision alone see the same examples in the same order and begin with the same
    weights."""

    kind, command, config_type, tasks = "precision", "edgelearn precision train", PrecisionConfig, TASKS
    config: PrecisionConfig

    def compile(self, optimizer: Optimizer) -> None:
        precision = self.config.precision
        self.model.compile(optimizer, batchnorm=self.task.batchnorm, precision=precision)
        self.trace = TraceRanges(self.config.trace) if self.config.trace and precision.quantizes else None

    def describe(self) -> dict:
        return super().describe() | {"precision": self.model.precision.to_dict()}

    def run(self, run: Run, callbacks: Sequence[Callback] = (), say: Say = print) -> dict | None:
        tracing = [self.trace, KeepTrace(self.trace, run.folder / TRACE)] if self.trace else []
        results = super().run(run, [*callbacks, *tracing], say)
        if tracing:
            say(f"What became of its tensors: edgelearn precision trace {run.id}")
        return results
