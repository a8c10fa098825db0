"""Figures that depend on the machine and on what else it does: times of steps, and the memory of a process."""

from __future__ import annotations

from collections.abc import Mapping

from edgelearn.compile import LaunchTimes
from edgelearn.compile.memory.policies import EXACT
from edgelearn.device import Device
from edgelearn.experiments.claim import Claim
from edgelearn.graph import Network
from edgelearn.lab.profile.launches import costs_in
from edgelearn.lab.profile.measure import measure_in_turn
from edgelearn.runtime.build import folder

from .footprint import footprint
from .plans import BUDGETS, TWIN, lane_plan, plans_to_measure

RATIO, OFF, PROCESS = 1.35, 0.15, 140  # of keep-all's time, of a prediction, MiB
MIB = 1 << 20
LANES = (*(policy.__name__ for policy in EXACT), TWIN, *BUDGETS)  # those that change no bits, on the device


def check_times(network: Network, device: Device, rounds: int = 9) -> list[Claim]:
    """Of steps of batch 1, all lanes taking turns. Raises as `measure_in_turn`."""
    measured = plans_to_measure(network, device)
    plans = measured | {lane: lane_plan(lane, network, device) for lane in LANES if lane not in measured}
    found = dict(zip(plans, measure_in_turn(list(plans.values()), device, rounds), strict=True))
    costs = LaunchTimes.of(device, costs_in([found[lane] for lane in measured]))
    seconds = {lane: found[lane].wall for lane in LANES}
    return [ratio(seconds), predictions(seconds, {lane: costs.step(plans[lane]) for lane in LANES})]


def ratio(seconds: Mapping[str, float]) -> Claim:
    """Of inverting, `seconds` being those of a step in each lane."""
    found = seconds["invertible"] / seconds[TWIN]
    return Claim(
        f"A step that inverts takes at most {RATIO} of the time of keeping all of the same network",
        f"{found:.2f} ({seconds['invertible'] * 1e3:.1f} ms of {seconds[TWIN] * 1e3:.1f} ms)", found <= RATIO,
    )  # fmt: skip


def predictions(seconds: Mapping[str, float], predicted: Mapping[str, float]) -> Claim:
    """Of steps in each lane, from the launches of a few of them."""
    off = {lane: predicted[lane] / seconds[lane] - 1 for lane in seconds}
    low, high = min(off, key=off.get), max(off, key=off.get)
    return Claim(
        f"Times of steps are predicted within {OFF:.0%}, in each of {len(off)} lanes",
        f"{off[low]:+.1%} ({low}) to {off[high]:+.1%} ({high})", max(map(abs, off.values())) <= OFF,
    )  # fmt: skip


def check_process(device: Device) -> Claim:
    """Of MobileNet V2 1.0/224, batch 1. Raises as `footprint`."""
    claim = f"A process that trains all layers takes at most {PROCESS} MiB over its imports, kernels compiled"
    own_memory = device.kind != "cpu"
    if own_memory or folder() is None:
        why = "the device has memory of its own" if own_memory else "compiled kernels are not kept here"
        return Claim(claim, f"not counted: {why}", None)
    nbytes = footprint(device)
    return Claim(claim, f"{nbytes / MIB:.1f} MiB", nbytes <= PROCESS * MIB)
