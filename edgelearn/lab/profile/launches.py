"""Measure how long launches take on a device, and store it for the planner."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np

from edgelearn.compile import Plan
from edgelearn.compile.memory.launch_times import key
from edgelearn.device import Device
from edgelearn.errors import RunError
from edgelearn.tuned import launch_times as store

from .measure import StepTiming, disturbance, time_launches

ATTEMPTS = 2  # how often all rounds are measured, while other programs disturb them


def measure_launches(plans: Sequence[Plan], device: Device, rounds: int = 20, busy: bool = False) -> store.Table:
    """Time steps of `plans` on the device in turn, and store the times of their launches (see `table_of`) in
    EDGELEARN_TUNED or the user's folder, next to those of other launches. All plans to come are predicted by them.

    Arguments:
    - `plans`: steps that have the launches to be timed.
    - `device`: where they run.
    - `rounds`: of all plans (default 20).
    - `busy`: store the times even if other programs disturbed them (default False).

    Times that other programs disturbed (see `disturbance`) are measured again, once. Raises RunError if they disturbed
    those as well, nothing stored; as `time_launches`; FormatError where the stored times are
    damaged, before anything is measured, or nothing can be written.
    """
    store.load(device)
    timings, problem = list[StepTiming](), ""
    for _ in range(1 if busy else ATTEMPTS):
        timings = time_launches(plans, device, rounds)
        problem = disturbance(timings)
        if not problem:
            break
    if problem and not busy:
        raise RunError(
            f"The machine is busy: {problem}. Such times would mislead all plans to come, so that they were not "
            f"stored: end other programs, and measure again."
        )
    table = table_of(timings)
    store.save(table, device)
    return table


def table_of(timings: Sequence[StepTiming]) -> store.Table:
    """Seconds of each kind of launch (see compile/memory/launch_times.py): the mean over its places in steps, since
    caches differ between them, of the median over rounds. The time of a step beyond its launches is divided between a
    cost of each launch and one of the step by least squares: take plans of few launches and of many."""
    seconds: dict[str, list[float]] = {}
    for timed in (timed for timing in timings for timed in timing.launches):
        seconds.setdefault(key(timed.launch), []).append(timed.median)
    means = {name: float(np.mean(values)) for name, values in seconds.items()}
    return store.Table(datetime.date.today().isoformat(), *_overheads(timings), means)


def _overheads(timings: Sequence[StepTiming]) -> tuple[float, float]:
    """(seconds for each launch, seconds for a step) beyond the launches' own, none below 0."""
    from scipy.optimize import nnls

    rests = [timing.wall - sum(timed.median for timed in timing.launches) for timing in timings]
    counts = np.array([(len(timing.launches), 1.0) for timing in timings])
    (between, fixed), _ = nnls(counts, np.maximum(rests, 0.0))
    return float(between), float(fixed)
