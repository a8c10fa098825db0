"""One training in one precision, from data to a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from edgelearn.experiments.job import Job, Say, process_peak_bytes
from edgelearn.runs import Run, atomic, figures, wilson_interval
from edgelearn.train import Callback, TraceRanges
from edgelearn.train.phases import Phases

from .config import PrecisionConfig
from .tasks import TASKS, Task, load_task, resolve

TRACE = "ranges.safetensors"


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

    def fit(self, callbacks: Sequence[Callback]) -> None:
        size = min(self.task.batch_size, len(self.task.train[1]))
        more = [self.trace] if self.trace else []
        self.model.fit(
            *self.task.train, size, self.config.epochs, micro_batch=min(self.config.micro_batch, size),
            validation_data=self.task.test, callbacks=[*callbacks, *more],
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
        if self.trace:
            atomic.write_bytes(run.folder / TRACE, self.trace.trace.to_bytes())
        figures.plot_learning_curves(rows, run.folder / "curves.png")
        run.finish(results)
        low, high = results["interval"]
        say(f"Test accuracy: {results['correct']}/{total} = {accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})")
        return results
