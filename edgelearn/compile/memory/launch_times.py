"""Times of launches on a device: as measured there, or by the roofline of its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256

from edgelearn.compile.plan import Plan
from edgelearn.device import Device
from edgelearn.launch import Access, Launch, Many, Transfer
from edgelearn.tuned import launch_times as store

BYTE = 0.1  # bytes from memory for each FLOP at best: between a CPU's and a GPU's
PAGING = 1e9  # bytes/s between the device and pages outside it, unless that was measured
LAUNCH = 5e-6  # seconds; devices don't say
CLOCK_MHZ = 1000  # of devices whose drivers don't say (Intel's gives 0 for some CPUs)


@dataclass(frozen=True)
class LaunchTimes:
    """Predicts the seconds of launches and steps.

    - `origin`: where the figures are from.
    - `flops`, `bandwidth`: FLOP/s and bytes/s; a launch that wasn't measured takes the longer of the two.
    - `between`: seconds that a step takes for each launch besides (default 5 µs).
    - `fixed`: seconds that a step takes once, for inputs and results (default 0).
    - `measured`: seconds by `key` of the launch (default none).
    - `paging`: bytes/s to and from offloaded pages; launches that run meanwhile are not considered (default 1 GB/s).
    """

    origin: str
    flops: float
    bandwidth: float
    between: float = LAUNCH
    fixed: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict, repr=False)
    paging: float = PAGING

    @classmethod
    def of(cls, device: Device, table: store.Table | None = None) -> LaunchTimes:
        """Times by `table`, or by the one measured earlier on this kind of device; the roofline alone if there is none.
        Raises FormatError for a damaged file."""
        clock, width = device.clock_mhz or CLOCK_MHZ, 128 if device.is_gpu else device.vector_width
        flops = device.compute_units * clock * 1e6 * width * 2
        table = table or store.load(device)
        if table is None:
            text = f"not measured: the roofline of compute units, a clock of {clock} MHz and vector width"
            return cls(text, flops, flops * BYTE)
        text = f"measured on {device.id} until {table.date}, {len(table.seconds)} launches"
        return cls(text, flops, flops * BYTE, table.between, table.fixed, table.seconds)

    def seconds(self, launch: Launch) -> float:
        measured = self.measured.get(key(launch))
        return self.between + (self._estimated(launch) if measured is None else measured)

    def step(self, plan: Plan) -> float:
        """Seconds of a step of `plan`."""
        return self.fixed + sum(map(self.seconds, plan.step_launches))

    def known(self, plan: Plan) -> float:
        """The share of a step's launches that were measured."""
        launches = plan.step_launches
        return sum(key(launch) in self.measured for launch in launches) / len(launches)

    def _estimated(self, launch: Launch) -> float:
        if isinstance(launch, Transfer):
            return launch.moved / self.paging
        return max(launch.flops / self.flops, launch.nbytes / self.bandwidth)


def key(launch: Launch) -> str:
    """Identifies launches that take equally long: the kernel, and a digest of sizes and numbers."""
    return _key(
        launch.kernel, launch.source, launch.macros, launch.grid, launch.group, tuple(map(_size, launch.arguments))
    )


@cache
def _key(kernel: str, *more: object) -> str:
    return f"{kernel} {sha256(repr(more).encode()).hexdigest()[:16]}"


def _size(argument: Access | Many | int | float) -> object:
    if isinstance(argument, Many):
        return sum(access.nbytes for access in argument.accesses)
    return argument.nbytes if isinstance(argument, Access) else argument
