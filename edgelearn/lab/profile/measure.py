"""Time every launch of a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from edgelearn.compile import Plan
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.launch import Launch
from edgelearn.ops import Traits, pack
from edgelearn.runtime import Context, Kernels, Session

WARM_UP = 1  # rounds


@dataclass(frozen=True)
class Timed:
    """A launch of the step whose time is the median of all: `start` and `seconds` of the device's clock, from the start
    of the step's first launch; and the median over all steps of what the launch took."""

    launch: Launch
    start: float
    seconds: float
    median: float


@dataclass(frozen=True)
class Measurement:
    """`wall`: the median of the host's time for a step, from the first call until its result is back, without
    profiling."""

    timed: list[Timed]
    wall: float
    rounds: int


def measure(plan: Plan, device: Device, rounds: int = 20, seed: int = 0) -> Measurement:
    """As `measure_in_turn` does one plan."""
    return measure_in_turn([plan], device, rounds, seed)[0]


def measure_in_turn(plans: Sequence[Plan], device: Device, rounds: int = 20, seed: int = 0) -> list[Measurement]:
    """In each round run steps of each of `plans` on drawn inputs, at learning rate 0, so that all are the same:
    training steps of a whole mini-batch where a plan trains, predictions otherwise. A machine that gets slower
    meanwhile does so for all of them. By turns on a plain queue, for the host's time, and on one that notes times,
    which costs a little: so the device holds every plan twice. Of two steps in a row the second counts, since the first
    finds in the caches what another plan has left there.

    Raises PlanError for a plan made for another kind of device, or without a round, and DeviceError."""
    if any(plan.traits != Traits.of(device) for plan in plans):
        raise PlanError(
            f"The plan was made for another kind of device than {device.id}. Make one for it: "
            f"make_plan(plan.request, device)."
        )
    if rounds < 1:
        raise PlanError(f"Measuring needs 1 round or more, not {rounds}.")
    queues = Kernels(Context(device)), Kernels(Context(device, profiling=True))
    noting = queues[1].context
    walls: list[list[float]] = [[] for _ in plans]
    times: list[list[list]] = [[] for _ in plans]
    with ExitStack() as stack:
        steps = [[stack.enter_context(_Steps(plan, kernels, seed)) for kernels in queues] for plan in plans]
        for _ in range(WARM_UP + rounds):
            for (plain, noted), wall, found in zip(steps, walls, times, strict=True):
                plain()
                wall.append(plain())
                noted()
                noting.take_times()
                noted()
                found.append(noting.take_times())
    return [
        Measurement(_timed(found[WARM_UP:]), float(np.median(wall[WARM_UP:])), rounds)
        for wall, found in zip(walls, times, strict=True)
    ]


class _Steps:
    """A session whose step can be called; closed at the end of the block."""

    def __init__(self, plan: Plan, kernels: Kernels, seed: int) -> None:
        r = plan.request
        rng = np.random.default_rng(seed)
        block = plan.storage.input.block
        self.plan, self.session = plan, Session(plan, kernels.context, kernels)
        self.session.load(r.network.initialize(seed))
        self.parts = [
            (pack(rng.uniform(-1, 1, (n, *r.network.input_shape)).astype(np.float32), block), np.zeros(n, np.int32))
            for n in plan.micro_batches(r.batch_size)
        ]

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def __call__(self) -> float:
        """Run a step; seconds of the host's clock."""
        start = time.perf_counter()
        if self.plan.request.optimizer is not None:
            self.session.train(self.parts, self.plan.request.batch_size, 0.0, 1)
        else:
            for x, labels in self.parts:
                self.session.predict(x, len(labels))
        return time.perf_counter() - start


def _timed(rounds: list[list[tuple[Launch, int, int]]]) -> list[Timed]:
    """Seconds from nanoseconds: of the step of median length, and the medians over all."""
    lengths = np.array([found[-1][2] - found[0][1] for found in rounds])
    typical = rounds[int(np.argsort(lengths)[len(lengths) // 2])]
    medians = np.median([[end - start for _, start, end in found] for found in rounds], axis=0)
    first = typical[0][1]
    return [
        Timed(launch, (start - first) / 1e9, (end - start) / 1e9, float(median) / 1e9)
        for (launch, start, end), median in zip(typical, medians, strict=True)
    ]
