"""Steps in float32, with ranges in hindsight and with those of the tensors themselves, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from edgelearn.device import Context, Device
from edgelearn.graph import Network, Plan, Precision, Request, Session, make_plan
from edgelearn.launch import Kernels
from edgelearn.ops import SGD

from .config import FLOAT, PrecisionConfig

LANES: Mapping[str, PrecisionConfig] = {
    FLOAT: PrecisionConfig(weights=FLOAT, activations=FLOAT, gradients=FLOAT),
    "in-hindsight": PrecisionConfig(),
    "current": PrecisionConfig(estimator="current"),
    "integers, in-hindsight": PrecisionConfig(integers=True),
    "integers, current": PrecisionConfig(integers=True, estimator="current"),
}


@dataclass(frozen=True)
class Times:
    """Seconds of a step by lane, an array of rounds each; `peaks` are planned bytes, `traffic` those a step moves."""

    device: str
    network: str
    examples: int
    seconds: Mapping[str, np.ndarray]
    peaks: Mapping[str, int]
    traffic: Mapping[str, int]

    def ratio(self, lane: str, beside: str) -> tuple[float, float, float]:
        """(median, lower and upper quartile) of times round by round."""
        ratios = self.seconds[lane] / self.seconds[beside]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        return float(middle), float(low), float(high)


def time_steps(
    network: Network, device: Device, examples: int, batchnorm: str = "kept", rounds: int = 15, steps: int = 5,
    lanes: Sequence[str] = tuple(LANES), progress: Callable[[int, int], None] = lambda done, total: None,
) -> Times:  # fmt: skip
    """Training steps of `examples` examples on `device`: in each round every lane makes `steps` of them, in an order
    that turns from round to round. Ranges are known by then, and the input is on the device."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, network.output.shape[-1], examples).astype(np.int32)
    plans = {name: _plan(network, device, examples, batchnorm, LANES[name].precision) for name in lanes}
    seconds: dict[str, list[float]] = {name: [] for name in lanes}
    with ExitStack() as stack:
        context = Context(device)
        kernels, weights, sessions = Kernels(context), network.initialize(0), {}
        for name, plan in plans.items():
            session = sessions[name] = Session(plan, context, kernels)
            stack.callback(session.close)
            session.load(weights)
            size = plan.storage.input.buffer.nbytes // 4
            x = rng.standard_normal(size, np.float32)
            for step in (1, 2, 3):  # compiles, and lets ranges settle
                session.train([(x, labels)], examples, 0.0, step)
        for turn in range(rounds):
            order = list(lanes[turn % len(lanes) :]) + list(lanes[: turn % len(lanes)])
            for name in order:
                start = time.perf_counter()
                for step in range(steps):
                    sessions[name].train([(None, labels)], examples, 0.0, 4 + turn * steps + step)
                seconds[name].append((time.perf_counter() - start) / steps)
            progress(turn + 1, rounds)
    return Times(
        device.id, network.name, examples, {name: np.array(found) for name, found in seconds.items()},
        {name: plan.peak_bytes for name, plan in plans.items()},
        {name: sum(plan.traffic().values()) for name, plan in plans.items()},
    )  # fmt: skip


def _plan(network: Network, device: Device, examples: int, batchnorm: str, precision: Precision) -> Plan:
    request = Request(network, examples, examples, SGD(0.01, momentum=0.9), batchnorm, precision=precision)
    return make_plan(request, device)
