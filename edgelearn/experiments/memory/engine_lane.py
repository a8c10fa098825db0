"""A step of edgelearn's engine as a lane does it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from edgelearn.compile import Offload, account
from edgelearn.graph import Network
from edgelearn.ops import pack
from edgelearn.runtime import Context, Session, choose_device, launch_times

from .plans import lane_plan


def prepare(
    lane: str, network: Network, x: np.ndarray, labels: np.ndarray, device: str
) -> tuple[Callable[[], float], dict]:
    """(a step, which returns its loss; what is known of its plan). `device` is any part of a name, "" the best one.
    Raises as `lane_plan`, and DeviceError."""
    context = Context(choose_device(device or None).device)
    plan = lane_plan(lane, network, context.device, len(x))
    session = Session(plan, context)
    session.load(plan.request.network.initialize(0))
    packed, steps = pack(x, plan.storage.input.block), itertools.count(1)

    def step() -> float:
        return session.train([(packed, labels)], len(x), 0.0, next(steps))[0]

    step()
    found, costs = account(plan), launch_times(context.device, [Offload()] if plan.paged_bytes else ())
    facts = {
        "stored": found.stored, "paged": found.paged, "peak": found.peak, "planned": plan.peak_bytes,
        "allocated": context.ledger.peak, "predicted": costs.step(plan), "measured_costs": costs.known(plan),
        "network": plan.request.network.name, "device": context.device.id,
    }  # fmt: skip
    return step, facts
