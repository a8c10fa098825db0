"""What launches take on a device, measured once and kept for the planner."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np

from edgelearn.device import Device
from edgelearn.graph import Plan
from edgelearn.graph.costs import key
from edgelearn.tuned import costs as store

from .measure import measure


def measure_costs(plans: Sequence[Plan], device: Device, rounds: int = 20) -> store.Table:
    """Run steps of `plans` on the device and keep the median of each kind of launch (see graph/costs.py), in
    EDGELEARN_TUNED or the user's folder, beside what is known of others. `between` is what a step takes over its
    launches, shared among them; the smallest of all plans. Raises as `measure`, and FormatError where nothing can be
    written."""
    seconds: dict[str, list[float]] = {}
    between = []
    for plan in plans:
        found = measure(plan, device, rounds)
        for timed in found.timed:
            seconds.setdefault(key(timed.launch), []).append(timed.median)
        busy = sum(timed.median for timed in found.timed)
        between.append(max(0.0, found.wall - busy) / len(found.timed))
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    table = store.Table(datetime.date.today().isoformat(), min(between), medians)
    store.save(table, device)
    return table
