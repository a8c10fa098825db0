"""Predicts how long a training will still take: compilation, extraction of features, steps, validations, checkpoints,
a test at its end. Each kind of work has a number of units, and a time for one: as measured so far, else as in an
earlier training of the same plan on the same device, else as predicted from the plan, corrected by how wrong that
was for the last training on the device, whatever its plan."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from edgelearn.compile import LaunchTimes, Plan
from edgelearn.device import Device
from edgelearn.launch import Launch

from .callbacks import Callback
from .sources import MixedSource, PictureSource, Subset, VariedSource
from .state import Logs

KERNEL, WARM, EXAMPLE, STEP = "kernel", "warm", "example", "step"
VALIDATION, CHECKPOINT, TEST = "validation", "checkpoint", "test"
_DEVICE = (EXAMPLE, STEP, VALIDATION)
_KERNEL_SECONDS = 0.09  # to compile one, PoCL on one core, until one has been compiled
_KEPT_SECONDS = 0.015  # to load one that was compiled earlier
_COMPILED = 3  # times that: a kernel that took longer was compiled
_WARM_SHARE = 1.6  # of the time to compile a kernel: PoCL compiles it for its work-group at its first launch
_KEPT_WARM_SHARE = 0.6
_CHECKPOINT_SECONDS = 0.01
_UNMEASURED = 0.75  # times the roofline, which counts one multiply-add a lane and cycle
_FORWARD = 1 / 5  # of the time of a step, examples loaded
_FIRST = 4  # times the expected seconds of first launches: a pass that takes longer measures its work, too
_READ = 4  # examples that are read to see how long one takes


@dataclass
class Work:
    """Work of one kind.

    Arguments:
    - `total`: its units.
    - `predicted`: seconds of a unit on a machine that does nothing else; `known` if an earlier training measured it.
    - `planned`: seconds of a unit as predicted from the plan alone; 0 where the plan doesn't say.
    - `done`: units that are done.
    - `counted`, `seconds`: units that were measured, and their time.
    """

    total: int = 0
    predicted: float = 0.0
    known: bool = False
    planned: float = 0.0
    done: int = 0
    counted: int = 0
    seconds: float = 0.0

    @property
    def left(self) -> int:
        return max(0, self.total - self.done)


@dataclass
class Remaining(Callback):
    """Seconds left of a training, from what has been done so far: a callback of `fit`, the first one.

    What was predicted and not measured yet takes longer where other programs use the processor: by as much as the
    compilation did, whose processor time is known.

    Arguments:
    - `work`: what there is to do, by kind.
    """

    work: dict[str, Work]
    _last: float = field(default_factory=lambda: time.monotonic())
    _used: float = field(default_factory=lambda: _processor_seconds())
    _kind: str = ""
    _compiled: int = 0  # kernels, in sessions that were opened before the one that is being opened
    _compiling: tuple[float, float] = (0.0, 0.0)  # seconds that passed, and those of the processor
    _begun: float = field(default_factory=lambda: time.monotonic())
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @classmethod
    def of(
        cls, phases: Mapping[str, Plan], device: Device, counts: Sequence[int], size: int, epochs: int,
        source: Any = None, validations: int | None = None, checkpoints: int = 0, test: float = 0.0,
        earlier: Mapping[str, float] | None = None, learned: Mapping[str, float] | None = None,
    ) -> Remaining:  # fmt: skip
        """Everything that a `fit` has to do.

        Arguments:
        - `phases`: plans by phase: "train", "extract" of the features, "test" of the whole network.
        - `device`: its launches are predicted from what was measured on it, else from its roofline.
        - `counts`: numbers of examples to train with and, if there are any, to validate with.
        - `size`: examples of a mini-batch.
        - `epochs`: passes over the examples.
        - `source`: the examples; a few are read to see how long one takes (default: they are in memory).
        - `validations`: their number (default: one for each epoch).
        - `checkpoints`: their number.
        - `test`: seconds of the test at the end, besides the network's (default 0: none).
        - `earlier`: seconds of a unit by kind, as an earlier training of the same plans measured them.
        - `learned`: that of an earlier training of any plans on this device.
        """
        times = LaunchTimes.of(device)
        slower = 1.0 if times.measured else _UNMEASURED
        train = phases.get("train", [*phases.values()][-1])
        kernels, step = _kernels(phases.values()), slower * times.step(train)
        tested, steps = sum(counts[1:]), epochs * ceil(counts[0] / size)
        reading = _reading(source)
        forward = _FORWARD * step / size
        found: dict[str, Work] = {KERNEL: Work(kernels, _KERNEL_SECONDS), WARM: Work(kernels)}
        if "extract" in phases:
            example = slower * times.step(phases["extract"]) / phases["extract"].request.micro_batch
            found[EXAMPLE] = Work(sum(counts), max(example, reading))
            reading = 0.0  # features are at hand
        validations = (epochs if validations is None else validations) * bool(tested)
        found |= {
            STEP: Work(steps, max(step, reading * size)),
            VALIDATION: Work(validations, max(forward, reading) * tested),
            CHECKPOINT: Work(checkpoints, _CHECKPOINT_SECONDS),
        }
        if test:
            found[TEST] = Work(1, test)
            if "test" in phases:
                whole = slower * times.step(phases["test"]) / phases["test"].request.micro_batch
                found[TEST].predicted += whole * tested
        left = cls(found)
        left.learn(learned or {})
        for kind, seconds in (earlier or {}).items():
            if kind in found and kind not in (KERNEL, WARM):
                found[kind].predicted, found[kind].known = seconds, True
        if earlier is not None:  # its kernels are kept on the disk
            found[KERNEL].predicted, found[KERNEL].known = _KEPT_SECONDS, True
        return left

    def learn(self, learned: Mapping[str, float]) -> None:
        """Correct what was predicted from the plan by another training's `learned`."""
        for kind, work in self.work.items():
            work.planned = work.planned or work.predicted
            if kind == KERNEL:
                work.predicted = learned.get(kind, work.predicted)
            elif kind in _DEVICE:
                work.predicted = work.planned * learned.get(kind, 1.0)

    @property
    def learned(self) -> dict[str, float]:
        """Values for other plans on this device: seconds to compile a kernel, if kernels were compiled, and times
        over those predicted from the plan, by kind."""
        measured = self.measured
        found = {kind: measured[kind] / self.work[kind].planned for kind in _DEVICE
                 if kind in measured and self.work[kind].planned}  # fmt: skip
        compiled = measured.get(KERNEL, 0.0)
        return found | ({KERNEL: compiled} if compiled > _COMPILED * _KEPT_SECONDS else {})

    @property
    def measured(self) -> dict[str, float]:
        """Seconds of a unit by kind, as they would be on a machine that does nothing else."""
        busy = self._busy
        return {kind: work.seconds / work.counted / busy for kind, work in self.work.items() if work.counted}

    @property
    def again(self) -> float:
        """Seconds since the beginning, as they would be on a machine that does nothing else and keeps the kernels."""
        warm = self.work[WARM].done * self._unit(WARM, self.work[WARM], 1.0, self._busy)
        passed = time.monotonic() - self._begun - self._compiling[0] - warm
        return max(0.0, passed) / self._busy

    def begin(self, kind: str, done: int | None = None) -> None:
        """Work of this kind begins now; `done` units of it were done before."""
        with self._lock:
            self._now(kind)
            if done is not None and kind in self.work:
                self.work[kind].done = done

    def advance(self, kind: str, done: int | None = None) -> None:
        """`done` units of a kind are done, default one more. The time since the last call is theirs, but for what
        kernels take at their first launch."""
        with self._lock:
            seconds, used = self._now(kind)
            work = self.work.setdefault(kind, Work())
            done = work.done + 1 if done is None else done
            units = done - work.done
            if kind == KERNEL:
                self._compiling = self._compiling[0] + seconds, self._compiling[1] + used
            if units > 0 and (kind != KERNEL or work.done):  # the first kernel starts the compiler
                seconds = self._but_for_first_launches(kind, work, seconds)
                if seconds is not None:
                    work.counted, work.seconds = work.counted + units, work.seconds + seconds
            work.done, work.total = done, max(done, work.total)

    def skip(self, *kinds: str) -> None:
        """What is left of these kinds won't be done."""
        for kind in kinds:
            if kind in self.work:
                self.work[kind].total = self.work[kind].done

    @property
    def seconds(self) -> float:
        """Seconds left."""
        with self._lock:
            factor, busy, left, current = self._factor(), self._busy, 0.0, 0.0
            for kind, work in self.work.items():
                unit = self._unit(kind, work, factor, busy)
                left += unit * work.left
                if kind == self._kind and work.left:
                    first = self._launched_first(kind, work)
                    current = unit + (first * self._unit(WARM, self.work[WARM], factor, busy) if first else 0.0)
            return max(0.0, left - min(current, time.monotonic() - self._last))

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1, by time."""
        with self._lock:
            factor, busy = self._factor(), self._busy
            units = [(self._unit(kind, work, factor, busy), work) for kind, work in self.work.items()]
        total = sum(unit * work.total for unit, work in units)
        return sum(unit * work.done for unit, work in units) / total if total else 0.0

    # -- moments of a training -----------------------------------------------------------------------------------

    def on_compile(self, done: int, total: int) -> None:
        if done == 0:
            self._compiled = self.work[KERNEL].done
            self.begin(KERNEL)
        self.advance(KERNEL, self._compiled + done)

    def on_extract(self, done: int, total: int) -> None:
        self.advance(EXAMPLE, done)

    def on_test_begin(self, logs: Logs) -> None:
        self.begin(VALIDATION)

    def on_test_end(self, logs: Logs) -> None:
        self.advance(VALIDATION)

    def on_train_begin(self, logs: Logs) -> None:
        epoch = self.model.position.epoch
        self.skip(KERNEL, EXAMPLE, *(() if self.work[KERNEL].counted else (WARM,)))
        self.work[STEP].total = self.model.steps_total  # of a federation the answers of clients
        if epoch:  # it goes on
            self.work[VALIDATION].done = self.work[VALIDATION].total * epoch // self.model.epochs
        self.begin(CHECKPOINT, epoch)
        self.begin(STEP, self.model.steps_done)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self.advance(STEP, self.model.steps_done)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.advance(CHECKPOINT, epoch + 1)

    def on_train_end(self, logs: Logs) -> None:
        self.begin(TEST)

    # -- seconds of a unit ---------------------------------------------------------------------------------------

    def _now(self, kind: str) -> tuple[float, float]:
        """Seconds since the last call, and those of the processor; work of `kind` goes on."""
        before, self._last, self._kind = self._last, time.monotonic(), kind
        used, self._used = self._used, _processor_seconds()
        return self._last - before, self._used - used

    def _but_for_first_launches(self, kind: str, work: Work, seconds: float) -> float | None:
        """Seconds without those of the first launches of kernels; None if these were most of it.

        The first pass of each kind launches its kernels for the first time: extraction and validation those of a
        forward pass, the first step all others.
        """
        launched = self._launched_first(kind, work)
        if not launched:
            return seconds
        warm = self.work[WARM]
        expected = launched * self._unit(WARM, warm, 1.0, self._busy)
        warm.done += launched
        return seconds - expected if seconds > _FIRST * expected else None

    def _launched_first(self, kind: str, work: Work) -> int:
        """The number of kernels that the next pass of this kind launches for the first time."""
        warm = self.work.get(WARM)
        if warm is None or kind not in _DEVICE or not self.work[KERNEL].counted:
            return 0
        if work.counted or (work.done and kind != STEP):
            return 0
        return warm.left if kind == STEP else min(warm.left, ceil(warm.total / 3))

    def _unit(self, kind: str, work: Work, factor: float, busy: float) -> float:
        """Seconds of a unit: as measured, else as predicted, on a machine as busy as this one; `factor`: how much
        longer the device takes than predicted."""
        if kind == WARM:
            kernel = self.work[KERNEL]
            share = _KEPT_WARM_SHARE if kernel.known else _WARM_SHARE
            return share * self._unit(KERNEL, kernel, 1.0, busy)
        if work.counted:
            return work.seconds / work.counted
        return busy * work.predicted * (1.0 if work.known or kind not in _DEVICE else factor)

    @property
    def _busy(self) -> float:
        """How much longer a thread takes than if it had a processor of its own."""
        passed, used = self._compiling
        return max(1.0, passed / used) if used > 0.1 else 1.0

    def _factor(self) -> float:
        """How much longer the device takes than predicted, so far."""
        step = self.work.get(STEP)
        if step is None or not step.counted or not step.predicted:
            return 1.0
        return step.seconds / (self._busy * step.predicted * step.counted)


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended: PoCL starts a linker."""
    return sum(os.times()[:4])


def _reading(source: Any) -> float:
    """Processor seconds that an example takes until it is in memory, 0 where it is there already."""
    if not isinstance(source, PictureSource | Subset | VariedSource | MixedSource):
        return 0.0
    count = min(_READ, len(source))
    begun = time.process_time()
    source[np.arange(count)]
    return (time.process_time() - begun) / count


def _kernels(plans: Any) -> int:
    """Kernels that plans compile."""
    launches = [launch for plan in plans for launch in plan.step_launches if isinstance(launch, Launch)]
    return len({(launch.source, launch.kernel, launch.macros, launch.group) for launch in launches})
