"""Training steps of edgelearn's engine by a named plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.compile import Offload, account
from edgelearn.graph import Network
from edgelearn.ops import pack
from edgelearn.runtime import Context, Session, choose_device, launch_times

from .plans import named_plan


def prepare(
    plan_name: str, network: Network, x: np.ndarray, labels: np.ndarray, device: str
) -> tuple[Callable[[], float], dict[str, Any]]:
    """(a training step, which returns its loss; the figures of its plan, see `Measured`).

    `device` is any part of a device's name, "" the best one. Raises as `named_plan`, and DeviceError.
    """
    context = Context(choose_device(device or None).device)
    plan = named_plan(plan_name, network, context.device, len(x))
    session = Session(plan, context)
    session.load(plan.request.network.initialize(0))
    packed, steps = pack(x, plan.storage.input.block), itertools.count(1)

    def step() -> float:
        return session.train([(packed, labels)], len(x), 0.0, next(steps))[0]

    step()
    accounted, times = account(plan), launch_times(context.device, [Offload()] if plan.paged_bytes else ())
    figures = {
        "stored": accounted.stored, "paged": accounted.paged, "peak": accounted.peak, "planned": plan.peak_bytes,
        "allocated": context.ledger.peak, "predicted": times.step(plan), "measured_launches": times.known(plan),
        "network": plan.request.network.name, "device": context.device.id,
    }  # fmt: skip
    return step, figures
