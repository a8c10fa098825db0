"""Time every launch of a step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from edgelearn.device import Context, Device
from edgelearn.errors import PlanError
from edgelearn.graph import Plan, Session
from edgelearn.launch import Launch
from edgelearn.ops import Traits, pack

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
    """Run steps of `plan` on drawn inputs, at learning rate 0, so that all are the same: training steps of a whole
    mini-batch where the plan trains, predictions otherwise. By turns on a plain queue, for the host's time, and on one
    that notes times, which costs a little: so the device holds the plan twice. Of two steps in a row the second counts,
    since the first finds in the caches what the other queue has left there.

    Raises PlanError for a plan made for another kind of device, or without a round, and DeviceError."""
    if plan.traits != Traits.of(device):
        raise PlanError(
            f"The plan was made for another kind of device than {device.id}. Make one for it: "
            f"make_plan(plan.request, device)."
        )
    if rounds < 1:
        raise PlanError(f"Measuring needs 1 round or more, not {rounds}.")
    profiling = Context(device, profiling=True)
    walls, profiled = [], []
    with _Steps(plan, Context(device), seed) as plain, _Steps(plan, profiling, seed) as noted:
        for _ in range(WARM_UP + rounds):
            plain()
            walls.append(plain())
            noted()
            profiling.take_times()
            noted()
            profiled.append(profiling.take_times())
    return Measurement(_timed(profiled[WARM_UP:]), float(np.median(walls[WARM_UP:])), rounds)


class _Steps:
    """A session whose step can be called; closed at the end of the block."""

    def __init__(self, plan: Plan, context: Context, seed: int) -> None:
        r = plan.request
        rng = np.random.default_rng(seed)
        block = plan.program("predict", r.micro_batch).x.block
        self.plan, self.session = plan, Session(plan, context)
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
