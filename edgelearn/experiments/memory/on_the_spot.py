"""Figures that depend on the machine and on what else it does: times of steps, and the memory of a process."""

from __future__ import annotations

from collections.abc import Mapping

from edgelearn.device import Device
from edgelearn.device.build import folder
from edgelearn.experiments.verdict import Verdict
from edgelearn.graph import Costs, Network, Request, make_plan
from edgelearn.graph.policies import POLICIES
from edgelearn.profile.launches import costs_in
from edgelearn.profile.measure import measure_in_turn

from .footprint import footprint
from .lanes import BUDGETS, MEASURED, TWIN, lane_plan

RATIO, OFF, PROCESS = 1.35, 0.15, 140  # of keep-all's time, of a prediction, MiB
MIB = 1 << 20
LANES = (*MEASURED, *(lane for lane in (*POLICIES, TWIN, *BUDGETS) if lane not in MEASURED))  # in float32


def check_times(network: Network, device: Device, rounds: int = 9) -> list[Verdict]:
    """Of steps of batch 1, all lanes taking turns. Raises as `measure_in_turn`."""
    plans = [make_plan(Request(network), device), *(lane_plan(lane, network, device) for lane in LANES)]
    found = measure_in_turn(plans, device, rounds)
    costs = Costs.of(device, costs_in(found[: 1 + len(MEASURED)]))
    seconds = {lane: one.wall for lane, one in zip(LANES, found[1:], strict=True)}
    predicted = {lane: costs.step(plan) for lane, plan in zip(LANES, plans[1:], strict=True)}
    return [ratio(seconds), predictions(seconds, predicted)]


def ratio(seconds: Mapping[str, float]) -> Verdict:
    """Of inverting, `seconds` being those of a step in each lane."""
    found = seconds["invertible"] / seconds[TWIN]
    return Verdict(
        f"A step that inverts takes at most {RATIO} of the time of keeping all of the same network",
        f"{found:.2f} ({seconds['invertible'] * 1e3:.1f} ms of {seconds[TWIN] * 1e3:.1f} ms)", found <= RATIO,
    )  # fmt: skip


def predictions(seconds: Mapping[str, float], predicted: Mapping[str, float]) -> Verdict:
    """Of steps in each lane, from the launches of a few of them."""
    off = {lane: predicted[lane] / seconds[lane] - 1 for lane in seconds}
    low, high = min(off, key=off.get), max(off, key=off.get)
    return Verdict(
        f"Times of steps are predicted within {OFF:.0%}, in each of {len(off)} lanes",
        f"{off[low]:+.1%} ({low}) to {off[high]:+.1%} ({high})", max(map(abs, off.values())) <= OFF,
    )  # fmt: skip


def check_process(device: Device) -> Verdict:
    """Of MobileNet V2 1.0/224, batch 1. Raises as `footprint`."""
    claim = f"A process that trains all layers takes at most {PROCESS} MiB over its imports, kernels compiled"
    if device.is_gpu or folder() is None:
        why = "the device has memory of its own" if device.is_gpu else "compiled kernels are not kept here"
        return Verdict(claim, f"not counted: {why}", None)
    nbytes = footprint(device)
    return Verdict(claim, f"{nbytes / MIB:.1f} MiB", nbytes <= PROCESS * MIB)
