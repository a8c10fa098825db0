"""One training in one precision, from data to a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from edgelearn.experiments.job import Job, Say, process_peak_bytes
from edgelearn.runs import Run, atomic, figures, wilson_interval
from edgelearn.train import Callback, RangeTrace, TraceRanges
from edgelearn.train.callbacks import Logs
from edgelearn.train.phases import Phases

from .config import PrecisionConfig
from .tasks import TASKS, Task, load_task, resolve

TRACE = "ranges.safetensors"


class KeepTrace(Callback):
    """Writes what `trace` has collected beside each checkpoint and when training ends, however it ends; and goes on
    with what was written before the step that training begins with."""

    def __init__(self, trace: TraceRanges, path: Path) -> None:
        self.trace, self.path = trace, path

    def on_train_begin(self, logs: Logs) -> None:
        if self.path.exists():
            self.trace.go_on(RangeTrace.read(self.path), self.model.position.updates)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        atomic.write_bytes(self.path, self.trace.trace.to_bytes())

    def on_train_end(self, logs: Logs) -> None:
        atomic.write_bytes(self.path, self.trace.trace.to_bytes())


class PrecisionJob(Job):
    """`run` does the whole training; a notebook can do its steps. Trainings that differ in their precision alone see
    the same examples in the same order and begin with the same weights."""

    kind, command, config_type = "precision", "edgelearn precision train", PrecisionConfig
    same: ClassVar = {"data": ("origin", "classes", "train", "test"), "weights": ("sha256",)}

    def __init__(self, config: PrecisionConfig, task: Task) -> None:
        self.task, self.config = task, resolve(config)
        self.model = task.model
        optimizer = task.optimizer(task.steps(self.config.epochs))
        self.model.compile(optimizer, batchnorm=task.batchnorm, precision=config.precision)
        self.trace = TraceRanges(config.trace) if config.trace and config.precision.quantises else None

    @classmethod
    def load(cls, config: PrecisionConfig) -> PrecisionJob:
        config = resolve(config)
        return cls(config, load_task(config))

    @cached_property
    def phases(self) -> Phases:
        size = min(self.task.batch_size, len(self.task.train[1]))
        return self.model.phases(size, min(self.config.micro_batch, size))

    def describe(self) -> dict:
        return {
            "device": self.model.device.facts() | {"reason": self.model.choice.reason},
            "data": self.task.data,
            "weights": self.task.weights,
            "plan": self.phases.to_dict(),
            "precision": self.model.precision.to_dict(),
        }

    def sources(self) -> list[str]:
        return [
            self.task.data["description"],
            f"Weights: {self.task.weights['description']}",
            TASKS[self.config.task].title,
        ]

    def run(self, run: Run, callbacks: Sequence[Callback] = (), say: Say = print) -> dict | None:
        tracing = [self.trace, KeepTrace(self.trace, run.folder / TRACE)] if self.trace else []
        return super().run(run, [*callbacks, *tracing], say)

    def fit(self, callbacks: Sequence[Callback]) -> None:
        size = min(self.task.batch_size, len(self.task.train[1]))
        self.model.fit(
            *self.task.train, size, self.config.epochs, micro_batch=min(self.config.micro_batch, size),
            validation_data=self.task.test, callbacks=callbacks,
        )  # fmt: skip

    def finish(self, run: Run, seconds: float, say: Say) -> dict:
        """The test accuracy after the last epoch, as `fit` has measured it, with memory and traffic of a step."""
        rows, plan, total = run.history(), self.phases["train"], len(self.task.test[1])
        accuracy = rows[-1]["val_accuracy"]
        results = {
            "correct": round(accuracy * total), "total": total, "accuracy": accuracy, "epochs": self.config.epochs,
            "loss": rows[-1]["val_loss"], "seconds": seconds,
            "interval": list(wilson_interval(round(accuracy * total), total)),
            "memory": {"planned": plan.peak_bytes, "allocated": self.model.context.ledger.peak,
                       "process": process_peak_bytes()},
            "traffic": plan.traffic().total(),
        }  # fmt: skip
        figures.plot_learning_curves(rows, run.folder / "curves.png")
        run.finish(results)
        low, high = results["interval"]
        say(f"Test accuracy: {results['correct']}/{total} = {accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})")
        return results
