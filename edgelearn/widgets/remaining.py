"""Predicts how long a training will still take: compilation, extraction of features, steps, validations, checkpoints,
the test at its end. Each kind of work has a number of units, and a time for one: as measured so far, else as in an
earlier run of the same plan on the same device, else as predicted from the plan."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from typing import Any, TypedDict

from edgelearn import atomic, records
from edgelearn.compile import LaunchTimes, Plan
from edgelearn.experiments.experiment import Training
from edgelearn.lab.runs import Run, RunStore
from edgelearn.launch import Launch

KERNEL, EXAMPLE, STEP, VALIDATION, CHECKPOINT, TEST = "kernel", "example", "step", "validation", "checkpoint", "test"
_DEVICE = (EXAMPLE, STEP, VALIDATION, TEST)
_KERNEL_SECONDS = 0.2  # PoCL on one core, until one has been compiled
_TEST_SECONDS = 3.0  # to draw the figures of a run, the first ones of a process
_UNMEASURED = 2.2  # times the roofline, which no launch reaches
_FORWARD = 1 / 2  # of the time of a step, examples loaded
FILE = "timing.json"  # in a run's folder: its device, plan, and seconds of a unit by kind
_RUNS = 50  # earlier ones that are looked at


@dataclass
class Work:
    """Work of one kind.

    Arguments:
    - `total`: its units.
    - `predicted`: seconds of a unit; `known` if they are those of an earlier run.
    - `done`: units that are done.
    - `counted`, `seconds`: units that were measured, and their time.
    """

    total: int = 0
    predicted: float = 0.0
    known: bool = False
    done: int = 0
    counted: int = 0
    seconds: float = 0.0


@dataclass
class Remaining:
    """Seconds left of a training, from what has been done so far.

    Arguments:
    - `work`: what there is to do, by kind.
    """

    work: dict[str, Work]
    _last: float = field(default_factory=time.monotonic)
    _kind: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, training: Training, store: RunStore | None = None) -> Remaining:
        """Everything that a loaded training has to do, as long as in an earlier run of `store`, else as predicted from
        its plans by the device's measured launches, else by its roofline."""
        times, phases = LaunchTimes.of(training.model.device), training.phases
        plans = list(phases.values())
        train = phases.get("train", plans[-1])
        size, _ = training.sizes
        slower = 1.0 if times.measured else _UNMEASURED
        step = slower * times.step(train)
        counts = [len(targets) for _, targets in (training.train, *([training.test] if training.test else []))]
        tests = sum(counts[1:])
        steps = ceil(counts[0] / size)
        forward = _FORWARD * step / size  # of an example, through what is trained
        found = {
            KERNEL: Work(_kernels(plans), _KERNEL_SECONDS),
            STEP: Work(training.epochs * steps, step),
            VALIDATION: Work((training.epochs + 1) * bool(tests), forward * tests),
            CHECKPOINT: Work(training.epochs, 0.01),
        }
        if "extract" in phases:
            extract = phases["extract"]
            example = slower * times.step(extract) / extract.request.micro_batch
            found[EXAMPLE] = Work(sum(counts), example)
        found[TEST] = Work(1, _TEST_SECONDS)
        if "test" in phases:
            example = slower * times.step(phases["test"]) / phases["test"].request.micro_batch
            found[TEST].predicted += example * tests
        for kind, seconds in _earlier(training, store).items() if store is not None else ():
            if kind in found:
                found[kind].predicted, found[kind].known = seconds, True
        return cls(found)

    def save(self, training: Training, run: Run) -> None:
        """Keep what was measured for later runs of the same plan."""
        seconds = {kind: work.seconds / work.counted for kind, work in self.work.items() if work.counted}
        atomic.write_json(run.folder / FILE, {"plan": _plan(training), "seconds": seconds})

    def begin(self, kind: str, done: int | None = None) -> None:
        """Work of this kind begins now; `done` units of it were done before."""
        with self._lock:
            self._last, self._kind = time.monotonic(), kind
            if done is not None and kind in self.work:
                self.work[kind].done = done

    def advance(self, kind: str, done: int | None = None) -> None:
        """`done` units of a kind are done, default one more. The time since the last call is theirs."""
        with self._lock:
            now, work = time.monotonic(), self.work.setdefault(kind, Work())
            done = work.done + 1 if done is None else done
            units, warm = done - work.done, work.done or kind != STEP or work.total == 1  # the first step warms up
            if units > 0 and warm:
                work.counted, work.seconds = work.counted + units, work.seconds + now - self._last
            work.done, work.total = done, max(done, work.total)
            self._last, self._kind = now, kind

    def skip(self, *kinds: str) -> None:
        """What is left of these kinds won't be done."""
        for kind in kinds:
            if kind in self.work:
                self.work[kind].total = self.work[kind].done

    @property
    def seconds(self) -> float:
        """Seconds left."""
        with self._lock:
            factor, left, current = self._factor(), 0.0, 0.0
            for kind, work in self.work.items():
                unit = self._unit(kind, work, factor)
                left += unit * (work.total - work.done)
                if kind == self._kind and work.done < work.total:
                    current = unit
            return max(0.0, left - min(current, time.monotonic() - self._last))

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1, by time."""
        with self._lock:
            factor = self._factor()
            units = [(self._unit(kind, work, factor), work) for kind, work in self.work.items()]
        total = sum(unit * work.total for unit, work in units)
        return sum(unit * work.done for unit, work in units) / total if total else 0.0

    def _unit(self, kind: str, work: Work, factor: float) -> float:
        """Seconds of a unit: as measured, else as predicted and corrected by `factor` where that is the device's."""
        if work.counted:
            return work.seconds / work.counted
        return work.predicted * (1.0 if work.known or kind not in _DEVICE else factor)

    def _factor(self) -> float:
        """How much longer the device takes than predicted, so far."""
        step = self.work.get(STEP)
        return step.seconds / (step.predicted * step.counted) if step and step.counted and step.predicted else 1.0


class _Timing(TypedDict):
    """What `Remaining.save` writes."""

    plan: dict[str, Any]
    seconds: dict[str, float]


def _plan(training: Training) -> dict[str, Any]:
    """What trainings have in common whose steps take equally long."""
    phases = {name: [plan.peak_bytes, len(plan.step_launches)] for name, plan in training.phases.items()}
    return {"device": training.model.device.facts()["name"], "sizes": list(training.sizes), "phases": phases}


def _earlier(training: Training, store: RunStore) -> dict[str, float]:
    """What was measured in the newest run of the same plan on the same device."""
    plan = _plan(training)
    for summary in [each for each in store.list() if each.kind == training.experiment.kind][:_RUNS]:
        with suppress(OSError, records.RecordError):
            found = records.read(summary.folder / FILE, _Timing)
            if found["plan"] == plan:
                return found["seconds"]
    return {}


def _kernels(plans: list[Plan]) -> int:
    """Kernels that plans compile."""
    launches = [launch for plan in plans for launch in plan.step_launches if isinstance(launch, Launch)]
    return len({(launch.source, launch.kernel, launch.macros, launch.group) for launch in launches})
