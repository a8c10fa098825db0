"""The roofline of a step: the time of each launch, and the least it could take on the device (S. Williams, A. Waterman,
D. Patterson, "Roofline", Communications of the ACM 52, 2009).

FLOPs are those of linear layers, a multiply-add as two, of integers as of floats. Bytes are those that a launch must
move: every buffer that it accesses, once. The bound of a launch is the longer of its FLOPs at the measured peak of the
type that its kernel multiplies in, and its bytes at the measured bandwidth of the place where they lie: each level of
cache holds the data touched last (see traffic.py). Left out: repeated reads because registers hold only a tile,
arithmetic outside linear layers, latency.

table.py, plot.py and trace.py show rooflines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edgelearn.compile import Plan
from edgelearn.device import Device
from edgelearn.device.units import UNITS
from edgelearn.display import Displayed
from edgelearn.launch import Launch
from edgelearn.runtime import Context, choose_device

from .measure import StepTiming, disturbance, time_launches
from .peaks import Peaks, measure_peaks
from .traffic import distances
from .unit_peaks import STORED

# Shares of the roof that no step and no kind of launch reaches on a quiet machine; see `measured`
MOST_OF_STEPS, MOST_OF_KINDS = 1.1, 3.0
TYPES_OF_UNITS = {unit.name: unit.types for unit in UNITS}
STORED_TYPES: dict[object, str] = {int(stored): kind for kind, stored in STORED.items()}


@dataclass(frozen=True)
class Point:
    """A group of launches.

    Arguments:
    - `name`: of the group: a kernel or a layer.
    - `launches`: number of them.
    - `flops`, `nbytes`: arithmetic and bytes of all of them together.
    - `seconds`: on the device, 0 where nothing was measured.
    - `bound`: seconds that they would take at the roof.
    - `compute`: types that their linear layers compute in (default "fp32").
    """

    name: str
    launches: int
    flops: int
    nbytes: int
    seconds: float
    bound: float
    compute: str = "fp32"

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes

    @property
    def efficiency(self) -> float:
        """Share of the roof that was reached."""
        return self.bound / self.seconds


def kind(launch: Launch) -> str:
    """The computation of a launch, whichever variant of a kernel does it: "pointwise_forward"."""
    return launch.decision.name.partition(" ")[0] if launch.decision else launch.kernel


def compute_type(launch: Launch) -> str:
    """The type that a launch multiplies in: that of its unit, "fp32" where it has none."""
    macros = dict(launch.macros)
    types = TYPES_OF_UNITS.get(str(macros.get("UNIT")), ())
    stored = STORED_TYPES.get(macros.get("TYPE"), "") if len(types) > 1 else "".join(types)
    return stored if stored in types else "fp32"


def bounds(plan: Plan, launches: Iterable[Launch], peaks: Peaks, width: float = 1.0) -> list[float]:
    """Seconds of each launch at the roof. `width`: size of a number relative to the plan's: 0.5 for halves."""
    launches = list(launches)
    reuse = distances(launches, lambda access: (access.buffer.role, plan.offsets[access.buffer]))
    return [
        max(
            launch.flops / peaks.arithmetic(compute_type(launch)),
            sum(n * width / peaks.bandwidth_at(far * width) for n, far in moved),
        )
        for launch, moved in zip(launches, reuse, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Roofline(Displayed):
    """A measured step next to the limits of its device.

    Arguments:
    - `name`: of the step.
    - `device`: it was measured on.
    - `plan`: of the step.
    - `peaks`: the device's limits.
    - `timing`: seconds of each launch, in order.
    - `bounds`: seconds that each launch would take at the roof, in order.
    """

    name: str
    device: Device
    plan: Plan = field(repr=False)
    peaks: Peaks
    timing: StepTiming = field(repr=False)
    bounds: list[float] = field(repr=False)

    @property
    def headline(self) -> str:
        return f"of a {self.name} on {self.device.id}: {self.wall * 1e3:.2f} ms"

    @property
    def wall(self) -> float:
        """Median seconds of a step on the host's clock."""
        return self.timing.wall

    @property
    def busy(self) -> float:
        """Seconds of all launches together."""
        return sum(timed.median for timed in self.timing.launches)

    @property
    def problem(self) -> str:
        """Why nothing may be concluded from these times; empty if nothing is wrong with them. Launches far above the
        roof tell that it was measured while other programs computed; data in a nearer cache than is assumed explains
        little."""
        fastest = max(self.by_kind(), key=lambda point: point.efficiency)
        for point, what, most in (
            (fastest, f"'{fastest.name}'", MOST_OF_KINDS), (self.total, "the whole step", MOST_OF_STEPS),
        ):  # fmt: skip
            if point.efficiency > most:
                return f"{what} reached {point.efficiency:.0%} of the roof, which was measured too low"
        return disturbance([self.timing])

    @property
    def total(self) -> Point:
        return self._points(lambda launch: "all")[0]

    def by_kind(self) -> list[Point]:
        """Groups by kind of launch, "pointwise_forward", "depthwise_backward_data" and so on; the longest first."""
        return self._points(kind)

    def by_layer(self) -> list[Point]:
        """Groups by layer, the longest first."""
        return self._points(lambda launch: launch.layer)

    def _points(self, name: Callable[[Launch], str]) -> list[Point]:
        groups: dict[str, list[int]] = {}
        for index, timed in enumerate(self.timing.launches):
            groups.setdefault(name(timed.launch), []).append(index)
        points = []
        for key, indices in groups.items():
            timed = [self.timing.launches[i] for i in indices]
            flops, nbytes = sum(t.launch.flops for t in timed), sum(t.launch.nbytes for t in timed)
            seconds, bound = sum(t.median for t in timed), sum(self.bounds[i] for i in indices)
            types = dict.fromkeys(compute_type(t.launch) for t in timed if t.launch.flops)
            points.append(Point(key, len(timed), flops, nbytes, seconds, bound, ", ".join(types) or "fp32"))
        return sorted(points, key=lambda point: -point.seconds)


def profile(
    plan: Plan, device: Device | str | None = None, rounds: int = 20, name: str = "", peaks: Peaks | None = None
) -> Roofline:
    """Time every launch of a step.

    Arguments:
    - `plan`: the step: a training step, or a prediction where the plan doesn't train.
    - `device`: the device that the plan was made for (default: the best one).
    - `rounds`: steps to measure.
    - `name`: of the step, for reports (default: the network's).
    - `peaks`: of the device, if they were measured before.

    Raises PlanError for a plan of another kind of device, and DeviceError.
    """
    device = choose_device(device).device
    peaks = peaks or measure_peaks(Context(device))
    (timing,) = time_launches([plan], device, rounds)
    launches = [timed.launch for timed in timing.launches]
    name = name or plan.request.network.name
    return Roofline(name, device, plan, peaks, timing, bounds(plan, launches, peaks))
