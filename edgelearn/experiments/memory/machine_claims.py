"""Claims that depend on the machine and its load: times of steps, and the memory of a process."""

from __future__ import annotations

from collections.abc import Mapping

from edgelearn.compile import LaunchTimes
from edgelearn.compile.memory.policies import EXACT
from edgelearn.device import Device
from edgelearn.experiments.claim import Claim
from edgelearn.graph import Network
from edgelearn.lab.profile.roofline import disturbance, table_of, time_launches
from edgelearn.runtime.build import folder
from edgelearn.units import MB

from .footprint import footprint
from .plans import BUDGETS, REVERSIBLE, named_plan, plans_to_measure

RATIO, OFF, PROCESS = 1.35, 0.15, 147  # of keep-all's time, of a prediction, MB
RATIO_CLAIM = f"A step that inverts takes at most {RATIO} of the time of storing all of the same network"
EXACT_PLANS = (*(policy.__name__ for policy in EXACT), REVERSIBLE, *BUDGETS)  # those that change no bits, on the device


def check_times(network: Network, device: Device, rounds: int = 9) -> list[Claim]:
    """Claims on times of steps of batch 1, all plans taking turns; none is decided by times that other programs
    disturbed. Raises as `time_launches`."""
    measured = plans_to_measure(network, device)
    plans = measured | {name: named_plan(name, network, device) for name in EXACT_PLANS if name not in measured}
    timings = dict(zip(plans, time_launches(list(plans.values()), device, rounds), strict=True))
    if problem := disturbance(list(timings.values())):
        return [
            Claim(claim, f"not decided: {problem}", None) for claim in (RATIO_CLAIM, prediction_claim(len(EXACT_PLANS)))
        ]
    times = LaunchTimes.of(device, table_of([timings[name] for name in measured]))
    seconds = {name: timings[name].wall for name in EXACT_PLANS}
    return [ratio(seconds), predictions(seconds, {name: times.step(plans[name]) for name in EXACT_PLANS})]


def ratio(seconds: Mapping[str, float]) -> Claim:
    """The claim on inverting; `seconds` of a step by plan."""
    measured = seconds["invertible"] / seconds[REVERSIBLE]
    return Claim(
        RATIO_CLAIM,
        f"{measured:.2f} ({seconds['invertible'] * 1e3:.1f} ms of {seconds[REVERSIBLE] * 1e3:.1f} ms)",
        measured <= RATIO,
    )


def predictions(seconds: Mapping[str, float], predicted: Mapping[str, float]) -> Claim:
    """The claim on predicted times, made from the launches of a few plans; `seconds` of a step by plan."""
    off = {name: predicted[name] / seconds[name] - 1 for name in seconds}
    low, high = min(off, key=lambda name: off[name]), max(off, key=lambda name: off[name])
    return Claim(
        prediction_claim(len(off)),
        f"{off[low]:+.1%} ({low}) to {off[high]:+.1%} ({high})", max(map(abs, off.values())) <= OFF,
    )  # fmt: skip


def prediction_claim(plans: int) -> str:
    """The claim on predicted times, for so many plans."""
    return f"Times of steps are predicted within {OFF:.0%}, for each of {plans} plans"


def check_process(device: Device) -> Claim:
    """The claim on main memory, for MobileNet V2 1.0/224, batch 1. Raises as `footprint`."""
    claim = f"A process that trains all layers takes at most {PROCESS} MB over its imports, kernels compiled"
    own_memory = device.kind != "cpu"
    if own_memory or folder() is None:
        why = "the device has memory of its own" if own_memory else "compiled kernels are not stored here"
        return Claim(claim, f"not counted: {why}", None)
    nbytes = footprint(device)
    return Claim(claim, f"{nbytes / MB:.1f} MB", nbytes <= PROCESS * MB)
