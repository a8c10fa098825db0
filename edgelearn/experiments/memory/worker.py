"""A lane in a process of its own, so that its memory can be told from that of others.

    python -m edgelearn.experiments.memory.worker LANE NETWORK ALPHA EXAMPLES DEVICE

Writes a line of JSON once it is ready, and one for each line it reads: a number of steps in, their seconds out; or an
"error", once, where the lane can't be done."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable

import numpy as np


def main(lane: str, network: str, alpha: str, examples: str, device: str) -> None:
    import pyopencl  # noqa: F401 -- before memory is counted, as are PyTorch and the engine

    from edgelearn.bench.machine import peak_resident_bytes
    from edgelearn.errors import EdgelearnError
    from edgelearn.experiments.networks import named_network

    from .lanes import TORCH

    rng = np.random.default_rng(0)
    try:
        net = named_network(network, float(alpha))
        x = rng.uniform(-1, 1, (int(examples), *net.input_shape)).astype(np.float32)
        labels = rng.integers(0, net.output.shape[-1], int(examples)).astype(np.int32)
        if lane in TORCH:
            from .torch_twin import prepare

            before = peak_resident_bytes()
            step, facts = prepare(net, x, labels, checkpointed=lane != TORCH[0]), {}
        else:
            before = peak_resident_bytes()
            step, facts = _prepare(lane, net, x, labels, device)
        loss = step()
        step()
    except EdgelearnError as error:
        _say({"error": str(error)})
        return
    _say(facts | {"loss": loss, "process": peak_resident_bytes() - before})
    for line in sys.stdin:
        step()  # not counted: the lane before has left its data in the caches
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        _say({"seconds": (time.perf_counter() - start) / int(line), "process": peak_resident_bytes() - before})


def _prepare(lane: str, net, x: np.ndarray, labels: np.ndarray, device: str) -> tuple[Callable[[], float], dict]:
    from edgelearn.device import Context, choose_device
    from edgelearn.graph import Costs, Session, account
    from edgelearn.ops import pack

    from .lanes import lane_plan

    context = Context(choose_device(device or None).device)
    plan = lane_plan(lane, net, context.device, len(x))
    session = Session(plan, context)
    session.load(plan.request.network.initialize(0))
    packed, steps = pack(x, plan.program("predict", len(x)).x.block), itertools.count(1)

    def step() -> float:
        return session.train([(packed, labels)], len(x), 0.0, next(steps))[0]

    step()
    found, costs = account(plan), Costs.of(context.device)
    if plan.paged_bytes:
        costs = costs.with_pages(context.device)
    facts = {
        "stored": found.stored, "paged": found.paged, "peak": found.peak, "planned": plan.peak_bytes,
        "allocated": context.ledger.peak, "predicted": costs.step(plan), "measured_costs": costs.known(plan),
        "network": plan.request.network.name, "device": context.device.id,
    }  # fmt: skip
    return step, facts


def _say(found: dict) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
