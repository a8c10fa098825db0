"""Time every launch of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgelearn.compile import Plan
from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.lab import measure
from edgelearn.lab.measure import Block, RoundsConfig, Sample, measure_in_turn, sample, usable_cores
from edgelearn.launch import Launch
from edgelearn.ops import Traits
from edgelearn.runtime import Context, Kernels, Session
from edgelearn.runtime.feed import random_batch

ATTEMPTS = 3
Times = list[tuple[Launch, int, int]]  # start and end of each launch by the device's clock, nanoseconds


@dataclass(frozen=True)
class TimedLaunch:
    """A launch of the step whose time is the median of all rounds.

    - `start`, `seconds`: by the device's clock; `start` counts from the step's first launch.
    - `median`: median over all rounds of the launch's time, seconds.
    """

    launch: Launch
    start: float
    seconds: float
    median: float


@dataclass(frozen=True)
class StepTiming:
    """Times of a step. `wall`: median of the host's time in seconds, from the first call until the result is back,
    without profiling; `noisy`: rounds during which other processes used the cores, however often they were repeated;
    `spread`: of the rounds' times, upper quartile minus lower one, as a share of the median."""

    launches: list[TimedLaunch]
    wall: float
    rounds: int
    noisy: int = 0
    spread: float = 0.0


def disturbance(timings: Sequence[StepTiming]) -> str:
    """Why nothing may be concluded from these times, as `lab.measure.disturbance` says; empty if nothing is wrong."""
    noise = sum(timing.noisy for timing in timings) / max(1, sum(timing.rounds for timing in timings))
    return measure.disturbance(noise, max((timing.spread for timing in timings), default=0.0))


def time_launches(plans: Sequence[Plan], device: Device, rounds: int = 20, seed: int = 0) -> list[StepTiming]:
    """Time steps of plans in turn, on random inputs: training steps of a whole mini-batch at learning rate 0, so that
    all are the same, or predictions where a plan doesn't train.

    Each plan takes turns on a plain queue, for the host's time, and on a profiling one, which costs a little: the
    device holds every plan twice. Of two steps in a row the second counts, since the first finds another plan's data in
    the caches. The first round isn't counted. A round that other processes disturbed is repeated up to ATTEMPTS times.

    Raises PlanError for a plan made for another kind of device, or without a round, and DeviceError.
    """
    if any(plan.traits != Traits.of(device) for plan in plans):
        raise PlanError(
            f"The plan was made for another kind of device than {device.id}. Make one for it: "
            f"make_plan(plan.request, device)."
        )
    if rounds < 1:
        raise PlanError(f"Measuring needs 1 round or more, not {rounds}.")
    plain, profiling = Kernels(Context(device)), Kernels(Context(device, profiling=True))
    with ExitStack() as stack:

        def steps(plan: Plan, kernels: Kernels) -> _Steps:
            return stack.enter_context(_Steps(plan, kernels, seed))

        timers = {i: _Timer(steps(plan, plain), steps(plan, profiling)) for i, plan in enumerate(plans)}
        samplers: dict[int, Callable[[], Sample]] = dict(timers.items())
        for sampler in samplers.values():
            sampler()
        blocks = measure_in_turn(samplers, usable_cores(), RoundsConfig(rounds, 0.0, attempts=ATTEMPTS))
    return [_step_timing(timer.times[1:], blocks[i]) for i, timer in timers.items()]


class _Steps:
    """A session whose step can be called; closed at the end of the block."""

    def __init__(self, plan: Plan, kernels: Kernels, seed: int) -> None:
        r = plan.request
        rng = np.random.default_rng(seed)
        self.plan, self.context, self.session = plan, kernels.context, Session(plan, kernels.context, kernels)
        self.session.load(r.network.initialize(seed))
        self.sizes = plan.micro_batches(r.batch_size)
        self.parts = [random_batch(plan, n, rng) for n in self.sizes]

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def __call__(self) -> None:
        """Run a step."""
        if self.plan.request.optimizer is not None:
            self.session.train(self.parts, self.plan.request.batch_size, 0.0, 1)
        else:
            for n, (x, _) in zip(self.sizes, self.parts, strict=True):
                self.session.predict(x, n)


@dataclass
class _Timer:
    """Samples steps of a plan by the host's clock, and collects the device's times of its launches."""

    plain: _Steps
    profiled: _Steps
    times: list[Times] = field(default_factory=list)

    def __call__(self) -> Sample:
        cpu = time.process_time()
        wall = sample(self.plain).times
        self.profiled()
        self.profiled.context.take_times()
        self.profiled()
        self.times.append(self.profiled.context.take_times())
        return Sample(wall, time.process_time() - cpu)


def _step_timing(launches: list[Times], blocks: Sequence[Block]) -> StepTiming:
    low, wall, high = np.quantile([block.seconds for block in blocks], (0.25, 0.5, 0.75))
    noisy = sum(block.noisy for block in blocks)
    return StepTiming(_timed(launches), float(wall), len(blocks), noisy, float((high - low) / wall))


def _timed(rounds: list[Times]) -> list[TimedLaunch]:
    """Launches of the round of median length, with medians over all rounds."""
    lengths = np.array([times[-1][2] - times[0][1] for times in rounds])
    typical = rounds[int(np.argsort(lengths)[len(lengths) // 2])]
    medians: Any = np.median([[end - start for _, start, end in times] for times in rounds], axis=0)
    first = typical[0][1]
    return [
        TimedLaunch(launch, (start - first) / 1e9, (end - start) / 1e9, float(median) / 1e9)
        for (launch, start, end), median in zip(typical, medians, strict=True)
    ]
