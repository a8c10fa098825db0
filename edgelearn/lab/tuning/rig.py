"""A workload on a device, timed with any choice of kernels."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from edgelearn.compile import Kind, Plan, make_plan
from edgelearn.compile.program import Program
from edgelearn.launch import Buffer, Decision, KernelConfig, Launch, Role
from edgelearn.ops import Traits
from edgelearn.runtime import Context, Kernels, Session
from edgelearn.runtime.feed import Examples, Targets, random_batch

from .workloads import Work

GUESSED_CPU, GUESSED_GPU = 1e11, 1e13  # FLOP/s
LEAST_STEPS, MOST_STEPS, LEAST_SECONDS = 2, 9, 0.1  # of a turn
WARM_UP = 1  # step: compiles kernels, or loads them again if others have displaced them from the driver's cache


@dataclass(frozen=True)
class TunedStep:
    """One measured step: `seconds` by the host's clock, and nanoseconds on the device by decision."""

    seconds: float
    by_decision: Mapping[str, float]


class Rig:
    """Runs `work` on the device of `context`, which must profile."""

    def __init__(self, work: Work, context: Context, kernels: Kernels) -> None:
        self.work, self.context, self.kernels = work, context, kernels
        self.weights = work.request.network.initialize()
        self.steps = LEAST_STEPS

    def plan(self, choices: Mapping[str, KernelConfig]) -> Plan:
        device = self.context.device
        return make_plan(self.work.request, device, traits=replace(Traits.of(device), tuned=choices))

    def program(self, plan: Plan) -> Program:
        return plan.program(Kind.TRAIN if self.work.trains else Kind.PREDICT)

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """The decisions of the step, by name."""
        launches = self.program(self.plan({})).launches
        return {launch.decision.name: launch.decision for launch in launches if launch.decision}

    def seconds(self) -> float:
        """A rough estimate of the time of a step."""
        launches = self.program(self.plan({})).launches
        return sum(launch.flops / (GUESSED_GPU if self.context.device.is_gpu else GUESSED_CPU) for launch in launches)

    def run(self, choices: Mapping[str, KernelConfig]) -> list[TunedStep]:
        """Time steps computed with `choices`, more of them where they are short."""
        plan = self.plan(choices)
        with closing(Session(plan, self.context, self.kernels)) as session:
            session.load(self.weights)
            x, targets = random_batch(plan, self.work.request.micro_batch, np.random.default_rng(0))
            steps = [self._step(session, x, targets) for _ in range(WARM_UP + self.steps)][WARM_UP:]
        self.steps = int(np.clip(LEAST_SECONDS / median(s.seconds for s in steps), LEAST_STEPS, MOST_STEPS))
        return steps

    def _step(self, session: Session, x: Examples, targets: Targets) -> TunedStep:
        self.context.take_times()
        start = time.perf_counter()
        if self.work.trains:
            session.train([(x, targets)], self.work.request.micro_batch, rate=0.0, step=1)
        else:
            session.predict_packed(x, self.work.request.micro_batch)
        return TunedStep(time.perf_counter() - start, shares(self.context.take_times()))


def shares(times: Iterable[tuple[Launch, int, int]]) -> dict[str, float]:
    """Nanoseconds by decision: those of its launches, and a share, by bytes, of the launches that add up partial sums
    it has left."""
    spent: dict[str, float] = defaultdict(float)
    left_by: dict[Buffer, str] = {}
    for launch, start, end in times:
        if launch.decision:
            spent[launch.decision.name] += end - start
            left_by |= {b: launch.decision.name for b in launch.writes if b.role is Role.PARTIAL}
        elif left := [b for b in launch.reads if b in left_by]:
            whole = sum(b.nbytes for b in launch.reads)
            for buffer in left:
                spent[left_by[buffer]] += (end - start) * buffer.nbytes / whole
    return dict(spent)
