"""Times of training steps in float32, in the compute types, with ranges in hindsight and with ranges of the tensors
themselves, in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgelearn.compile import Plan, Precision, Request, make_plan
from edgelearn.device import Device
from edgelearn.graph import Network
from edgelearn.lab.measure import RoundsConfig, measure_in_turn, sample, usable_cores
from edgelearn.lab.statistics import disturbance, quartiles
from edgelearn.ops import SGD, Compute
from edgelearn.runtime import Context, Kernels, Session

from .config import FLOAT, PrecisionConfig

VARIANTS: Mapping[str, PrecisionConfig] = {
    FLOAT: PrecisionConfig(weights=FLOAT, activations=FLOAT, gradients=FLOAT),
    "in-hindsight": PrecisionConfig(),
    "current": PrecisionConfig(observer="current"),
    "integers, in-hindsight": PrecisionConfig(integers=True),
    "integers, current": PrecisionConfig(integers=True, observer="current"),
}
COMPUTE = {kind: Compute(kind) for kind in ("tf32", "bf16", "fp16")}
SETTLING = 3  # steps that compile kernels and let ranges settle


@dataclass(frozen=True)
class Times:
    """Seconds of a step by variant, an array of rounds each; `peaks` are planned bytes, `traffic` bytes that a step
    moves; `steps` are those of a round, and `noise` is the share of rounds during which other processes used the
    cores."""

    device: str
    network: str
    examples: int
    seconds: Mapping[str, np.ndarray]
    peaks: Mapping[str, int]
    traffic: Mapping[str, int]
    steps: int = 1
    noise: float = 0.0

    @property
    def rounds(self) -> int:
        return len(next(iter(self.seconds.values())))

    @property
    def problem(self) -> str:
        """Why nothing may be concluded from these times; empty if nothing is wrong with them."""
        parts = [quartiles(seconds) for seconds in self.seconds.values()]
        return disturbance(self.noise, max((high - low) / middle for low, middle, high in parts))

    def ratio(self, variant: str, reference: str) -> tuple[float, float, float]:
        """(median, lower and upper quartile) of the variant's times over the reference's, round by round."""
        low, middle, high = quartiles(self.seconds[variant] / self.seconds[reference])
        return middle, low, high


def time_steps(
    network: Network, device: Device, examples: int, batchnorm: str = "moving", rounds: int = 15, steps: int = 5,
    variants: Sequence[str] = tuple(VARIANTS), progress: Callable[[int, int], None] = lambda done, total: None,
) -> Times:  # fmt: skip
    """Time training steps of a network by precision.

    Arguments:
    - `examples`: of a step; the input is on the device already.
    - `batchnorm`: "moving" or "batch".
    - `rounds`, `steps`: in each round every variant takes a block of `steps` steps, in an order that rotates.
    - `variants`: names in VARIANTS or COMPUTE.
    - `progress`: called with (rounds done, all rounds) after each.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, network.output.shape[-1], examples).astype(np.int32)
    plans = {name: _plan(network, device, examples, batchnorm, name) for name in variants}
    with ExitStack() as stack:
        context = Context(device)
        kernels, weights, samplers = Kernels(context), network.initialize(0), {}
        for name, plan in plans.items():
            session = Session(plan, context, kernels)
            stack.callback(session.close)
            session.load(weights)
            x = rng.standard_normal(plan.storage.input.buffer.nbytes // 4, np.float32)
            for number in range(1, SETTLING + 1):
                session.train([(x, labels)], examples, 0.0, number)
            numbers = itertools.count(SETTLING + 1)
            samplers[name] = partial(sample, partial(_step, session, labels, numbers), steps=steps)
        config = RoundsConfig(rounds, 0.0, steps)
        blocks = measure_in_turn(samplers, usable_cores(), config, lambda number: progress(number + 1, rounds))
    return Times(
        device.id, network.name, examples,
        {name: np.array([block.seconds for block in blocks[name]]) for name in variants},
        {name: plan.peak_bytes for name, plan in plans.items()},
        {name: sum(plan.traffic().values()) for name, plan in plans.items()},
        steps, float(np.mean([block.noisy for found in blocks.values() for block in found])),
    )  # fmt: skip


def _step(session: Session, labels: np.ndarray, numbers: itertools.count) -> None:
    session.train([(None, labels)], len(labels), 0.0, next(numbers))


def _plan(network: Network, device: Device, examples: int, batchnorm: str, variant: str) -> Plan:
    precision = VARIANTS[variant].precision if variant in VARIANTS else Precision()
    request = Request(
        network, examples, examples, SGD(0.01, momentum=0.9), batchnorm, precision=precision,
        compute=COMPUTE.get(variant, Compute()),
    )  # fmt: skip
    return make_plan(request, device)
