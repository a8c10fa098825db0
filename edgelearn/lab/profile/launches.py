"""What launches take on a device, measured once and kept for the planner."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np

from edgelearn.compile import Plan
from edgelearn.compile.memory.launch_times import key
from edgelearn.device import Device
from edgelearn.tuned import launch_times as store

from .measure import Measurement, measure_in_turn


def measure_costs(plans: Sequence[Plan], device: Device, rounds: int = 20) -> store.Table:
    """Run steps of `plans` on the device in turn and keep what they tell (see `costs_in`), in EDGELEARN_TUNED or the
    user's folder, beside what is known of other launches. Raises as `measure_in_turn`, and FormatError where what is
    known is damaged, before anything is measured, or nothing can be written."""
    store.load(device)
    table = costs_in(measure_in_turn(plans, device, rounds))
    store.save(table, device)
    return table


def costs_in(found: Sequence[Measurement]) -> store.Table:
    """What each kind of launch takes (see graph/costs.py): the mean over its places in steps, since what it finds in
    the caches differs between them, of the median over rounds. What steps take over their launches is shared among
    these and the step itself by least squares, so plans of few launches and of many tell most."""
    seconds: dict[str, list[float]] = {}
    for timed in (timed for one in found for timed in one.timed):
        seconds.setdefault(key(timed.launch), []).append(timed.median)
    means = {name: float(np.mean(values)) for name, values in seconds.items()}
    return store.Table(datetime.date.today().isoformat(), *_overheads(found), means)


def _overheads(found: Sequence[Measurement]) -> tuple[float, float]:
    """Seconds, none below 0, that a step takes over its launches for each of them, and once."""
    from scipy.optimize import nnls

    rests = [one.wall - sum(timed.median for timed in one.timed) for one in found]
    (between, fixed), _ = nnls(np.array([(len(one.timed), 1.0) for one in found]), np.maximum(rests, 0.0))
    return float(between), float(fixed)
