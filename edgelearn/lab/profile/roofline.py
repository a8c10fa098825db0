"""The roofline of a step: what each launch took, beside what the device could do at best (S. Williams, A. Waterman,
D. Patterson, "Roofline", Communications of the ACM 52, 2009).

FLOPs are those of linear layers, a multiply-add as two. Bytes are what a launch must move: every buffer that it
touches, once. The bound of a launch is the longer of its FLOPs at the measured peak, and its bytes at the measured
bandwidth of the place where they lie: each level of cache holds what was touched last (see traffic.py). Left out:
what a kernel reads more than once because its registers hold only a tile, arithmetic beside linear layers, latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgelearn.compile import Plan
from edgelearn.device import Device
from edgelearn.launch import Launch
from edgelearn.runtime import Context, choose_device

from .measure import Measurement, measure
from .peaks import Peaks, measure_peaks
from .traffic import distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """Some launches together: FLOPs and bytes of all, `seconds` on the device, and the `bound`: the seconds that they
    would take at the roof. `seconds` is 0 where nothing was measured."""

    name: str
    launches: int
    flops: int
    nbytes: int
    seconds: float
    bound: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes

    @property
    def efficiency(self) -> float:
        """Share of the roof that was reached."""
        return self.bound / self.seconds


def kind(launch: Launch) -> str:
    """What a launch computes, whichever variant of a kernel does it."""
    return launch.decision.name.partition(" ")[0] if launch.decision else launch.kernel


def bounds(plan: Plan, launches: Iterable[Launch], peaks: Peaks, width: float = 1.0) -> list[float]:
    """Seconds of each launch at the roof. `width` is the size of a number against that in the plan: 0.5 for halves."""
    launches = list(launches)
    found = distances(launches, lambda access: (access.buffer.role, plan.offsets[access.buffer]))
    return [
        max(launch.flops / peaks.flops, sum(n * width / peaks.bandwidth_at(far * width) for n, far in moved))
        for launch, moved in zip(launches, found, strict=True)
    ]


@dataclass(frozen=True)
class Roofline:
    """A measured step: of each launch its time and its bound (seconds), in order. `peaks` are the device's."""

    name: str
    device: Device
    plan: Plan = field(repr=False)
    peaks: Peaks
    measured: Measurement = field(repr=False)
    bounds: list[float] = field(repr=False)

    @property
    def wall(self) -> float:
        """Median seconds of a step on the host's clock."""
        return self.measured.wall

    @property
    def busy(self) -> float:
        """Seconds of all launches together."""
        return sum(timed.median for timed in self.measured.timed)

    @property
    def total(self) -> Point:
        return self._points(lambda launch: "all")[0]

    def by_kind(self) -> list[Point]:
        """What takes longest first: "pointwise_forward", "depthwise_backward_data" and so on."""
        return self._points(kind)

    def by_layer(self) -> list[Point]:
        """By the layer that a launch belongs to, what takes longest first."""
        return self._points(lambda launch: launch.layer)

    def _points(self, name: Callable[[Launch], str]) -> list[Point]:
        groups: dict[str, list[int]] = {}
        for index, timed in enumerate(self.measured.timed):
            groups.setdefault(name(timed.launch), []).append(index)
        found = []
        for key, indices in groups.items():
            timed = [self.measured.timed[i] for i in indices]
            flops, nbytes = sum(t.launch.flops for t in timed), sum(t.launch.nbytes for t in timed)
            seconds, bound = sum(t.median for t in timed), sum(self.bounds[i] for i in indices)
            found.append(Point(key, len(timed), flops, nbytes, seconds, bound))
        return sorted(found, key=lambda point: -point.seconds)

    def table(self, width: int = 120, layers: bool = False) -> str:
        """By kind, or by layer, as text `width` characters wide."""
        from .table import roofline_text

        return roofline_text(self, width, layers)

    def plot(self) -> Figure:
        """Arithmetic intensity and speed of every launch of a linear layer under the device's roofs."""
        from .plot import plot

        return plot(self)

    def trace(self) -> dict:
        """The step in Chrome's trace format: `json.dump` it, and open it in chrome://tracing or ui.perfetto.dev."""
        from .trace import trace

        return trace(self)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(self.table())}</pre>"


def profile(
    plan: Plan, device: Device | str | None = None, rounds: int = 20, name: str = "", peaks: Peaks | None = None
) -> Roofline:
    """Run `rounds` steps of `plan` on the device it was made for (by default the best one) and time every launch.

    `peaks` spares measuring the device when it was measured before. Raises PlanError for a plan of another kind of
    device, and DeviceError."""
    device = choose_device(device).device
    peaks = peaks or measure_peaks(Context(device))
    measured = measure(plan, device, rounds)
    launches = [timed.launch for timed in measured.timed]
    name = name or plan.request.network.name
    return Roofline(name, device, plan, peaks, measured, bounds(plan, launches, peaks))
