"""Prediction of a step's time on a device that is not here, from measurements on others; show.py shows it.

The plan is made for the device. Each launch takes as long as the roofline says, the longer of FLOPs at the published
peak and bytes at the published bandwidth of memory; divided by the share of the roof that launches of its kind reached
on measured devices, which the bound leaves out; plus the cost of a launch. See `ASSUMPTIONS` for the rest.

Devices are data: `devices/` has published figures with their sources, `measured/` the records of measurements.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypedDict, cast

from edgelearn import records
from edgelearn.compile import Plan, Request, make_plan
from edgelearn.device import Device
from edgelearn.display import Displayed, plural
from edgelearn.errors import FormatError, UsageError
from edgelearn.lab.energy import Energy
from edgelearn.ops import Traits

from .roofline import Peaks, Point, Roofline, bounds, kind

MEASURED, DESCRIBED = Path(__file__).with_name("measured"), Path(__file__).with_name("devices")
WIDTHS = {"fp32": 1.0, "fp16": 0.5}  # size of a number against float32
# pJ of a byte from memory, and of a multiply-add by type: M. Horowitz, "Computing's energy problem", ISSCC 2014, 45 nm:
# 1.3 nJ for 64 bits of DRAM (1.3 to 2.6); 3.7 + 0.9 pJ in float32, 1.1 + 0.4 pJ in float16.
PICOJOULES = {"byte": 162.5, "fp32": 4.6, "fp16": 1.5}
ASSUMPTIONS = (
    "kernels come as close to the roof as on the devices measured of the same kind, or on all of them if there is none",
    "every byte comes from memory, none from a cache",
    "published peaks are held, without throttling",
    "in fp16 every number is half as large, gradients and sums too, and the launches are the same",
    "the host never keeps the device waiting",
    "all of the memory is free",
    "energy, a projection, is that of multiply-adds and of bytes from memory alone, for 45 nm (Horowitz, ISSCC 2014)",
)


class Facts(TypedDict):
    """Entries that are read of a device's facts."""

    platform: str
    name: str
    kind: str
    compute_units: int


@dataclass(frozen=True)
class StepRecord:
    """A measured step: `wall` seconds of the host's clock, launches by kind, and energy (None: not measured)."""

    name: str
    wall: float
    kinds: tuple[Point, ...]
    energy: Energy | None = None

    @property
    def launches(self) -> int:
        return sum(point.launches for point in self.kinds)


@dataclass(frozen=True)
class DeviceRecord:
    """Steps measured on one device: times, and how close to the roof each kind of launch came.

    Arguments:
    - `device`: its facts, as a run records them.
    - `date`: of the measurement.
    - `peaks`: its measured limits.
    - `steps`: launches and times of each step.
    - `energy`: how energy was counted, or why it was not (default: unknown).
    """

    device: Facts
    date: str
    peaks: Peaks
    steps: tuple[StepRecord, ...]
    energy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = [point for step in self.steps for point in step.kinds]
        if not points or not self.peaks.bandwidth:
            raise ValueError("it has no steps, or no bandwidth")
        figures = [number for point in points for number in (point.seconds, point.bound)]
        figures += [self.peaks.flops, self.peaks.launch, *self.peaks.bandwidth.values(), *self.peaks.units.values()]
        if not all(0 < figure < math.inf for figure in figures):
            raise ValueError("times and peaks are numbers above 0")

    @classmethod
    def of(cls, rooflines: Sequence[Roofline]) -> DeviceRecord:
        """The record of rooflines measured on one device."""
        steps = tuple(StepRecord(r.name, r.wall, tuple(r.by_kind()), r.timing.energy) for r in rooflines)
        today = datetime.date.today().isoformat()
        first = rooflines[0]
        return cls(cast(Facts, first.device.facts()), today, first.peaks, steps, first.meter.to_dict())

    @property
    def name(self) -> str:
        units = plural(self.device["compute_units"], "compute unit")
        return f"{self.device['platform']} / {self.device['name']}, {units}"

    def to_dict(self) -> dict:
        """The record as values that `load` reads from JSON."""
        return asdict(self)

    @classmethod
    def load(cls, path: Path) -> DeviceRecord:
        """Raises FormatError for a file that `edgelearn profile --save` did not write."""
        try:
            return records.read(path, cls)
        except (OSError, records.RecordError) as error:
            raise FormatError(f"{path} is no record of `edgelearn profile --save`: {error}. Write it anew.") from None


@cache
def shipped() -> tuple[DeviceRecord, ...]:
    """The records that are part of the package."""
    return tuple(DeviceRecord.load(path) for path in sorted(MEASURED.glob("*.json")))


def efficiencies(records: Iterable[DeviceRecord]) -> dict[str, float]:
    """Share of the roof by kind of launch over all steps of `records`; "": over all launches, for unknown kinds."""
    bound: dict[str, float] = {}
    taken: dict[str, float] = {}
    for record in records:
        for step in record.steps:
            for point in step.kinds:
                for name in (point.name, ""):
                    bound[name] = bound.get(name, 0.0) + point.bound
                    taken[name] = taken.get(name, 0.0) + point.seconds
    return {name: bound[name] / taken[name] for name in bound}


def like(kind: str, records: Iterable[DeviceRecord]) -> list[DeviceRecord]:
    """Records of devices of a kind, "cpu" or "gpu"; if there is none, all records."""
    records = list(records)
    return [r for r in records if r.device["kind"] == kind] or records


def leave_one_out(records: Sequence[DeviceRecord]) -> list[tuple[DeviceRecord, StepRecord, float]]:
    """(record, step, predicted seconds) of every step, from the device's peaks and the efficiencies of the other
    records."""
    predictions = []
    for record in records:
        others = efficiencies(like(record.device["kind"], [r for r in records if r is not record]))
        for step in record.steps:
            launches = [(point.name, point.bound, point.launches) for point in step.kinds]
            predictions.append((record, step, expected(launches, others, record.peaks.launch)))
    return predictions


def expected(launches: Iterable[tuple[str, float, int]], efficiency: Mapping[str, float], launch: float) -> float:
    """Predicted seconds of (kind, seconds at the roof, number) of launches, each costing `launch` seconds as well."""
    return sum(bound / efficiency.get(name, efficiency[""]) + count * launch for name, bound, count in launches)


@dataclass(frozen=True)
class EdgeDevice:
    """Published figures of a device.

    Arguments:
    - `name`: of the device.
    - `kind`: "cpu", "gpu" or "accelerator".
    - `compute_units`: number of them.
    - `flops`: FLOP/s by precision: "fp32" and, where it computes in it, "fp16".
    - `bandwidth`: of its memory, bytes/s.
    - `memory`: bytes.
    - `launch`: seconds that a kernel launch costs.
    - `sources`: where each figure is from, or that it is an assumption.
    - `picojoules`: of a "byte" from memory, and of a multiply-add by precision (default: those of 45 nm, see
      `PICOJOULES`); others need a source, too.
    """

    name: str
    kind: Literal["cpu", "gpu", "accelerator"]
    compute_units: int
    flops: Mapping[str, float]
    bandwidth: float
    memory: int
    launch: float
    sources: Mapping[str, str]
    picojoules: Mapping[str, float] = field(default_factory=lambda: PICOJOULES)

    def __post_init__(self) -> None:
        if not {"fp32"} <= set(self.flops) <= set(WIDTHS):
            raise ValueError(f"flops has FLOP/s by precision: {', '.join(WIDTHS)}, fp32 at least")
        figures = {name: getattr(self, name) for name in ("compute_units", "bandwidth", "memory", "launch")}
        if self.picojoules is not PICOJOULES and not {"byte", *self.flops} <= set(self.picojoules):
            raise ValueError(f"picojoules has those of a byte and of a multiply-add in {', '.join(self.flops)}")
        energies = {f"picojoules of {name}": value for name, value in self.picojoules.items()}
        for name, value in (figures | dict(self.flops) | energies).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is a number above 0, not {value!r}")
        sourced = {"flops", *figures, *(["picojoules"] if self.picojoules is not PICOJOULES else [])}
        if sourced != set(self.sources):
            raise ValueError(f"sources says where {', '.join(sorted(sourced))} are from, and nothing else")

    @classmethod
    def load(cls, name: str | Path) -> EdgeDevice:
        """The device with a name in `edge_devices()`, or described by a JSON file with the fields of this class.

        Raises UsageError for another name, FormatError for a file that doesn't describe a device.
        """
        path = DESCRIBED / f"{name}.json" if str(name) in edge_devices() else Path(name)
        if not path.is_file():
            raise UsageError(
                f"There is no device '{name}', and no such file. Choose from {', '.join(edge_devices())}, or write a "
                f"JSON file like {DESCRIBED / 'adreno-540.json'}."
            )
        try:
            return records.read(path, cls)
        except (records.RecordError, OSError) as error:
            raise FormatError(
                f"{path} does not describe a device: {error}. See {DESCRIBED / 'adreno-540.json'} for one that does."
            ) from None

    def peaks(self, precision: str) -> Peaks:
        """Peaks in a precision. Raises FormatError if the device doesn't compute in it."""
        if precision not in self.flops:
            raise FormatError(f"{self.name} has no FLOP/s in {precision}, only in {', '.join(self.flops)}.")
        return Peaks(self.flops[precision], {1: self.bandwidth}, self.launch)

    def device(self) -> Device:
        """A device to make plans for, with memory for any of them."""
        endless = 1 << 62
        return Device(
            name=self.name, platform="described", vendor="", driver="", version="", kind=self.kind, memory=endless,
            largest_buffer=endless, local_memory=32 << 10, compute_units=self.compute_units, clock_mhz=0, alignment=128,
            vector_width=4, extensions=(),
        )  # fmt: skip

    def traits(self) -> Traits:
        return Traits(self.kind == "gpu", self.compute_units, 4)


def edge_devices() -> list[str]:
    """Names of the devices that are described in the package."""
    return sorted(path.stem for path in DESCRIBED.glob("*.json"))


_ESTIMATED = ("precision", "launches", "bound", "expected", "basis", "nbytes", "fits", "joules")


@dataclass(frozen=True)
class Estimate:
    """Predicted time of a step on a device in one precision.

    Arguments:
    - `device`: the device.
    - `precision`: "fp32" or "fp16", in which it computes.
    - `plan`: of the step, made for the device.
    - `launches`: number of kernel launches.
    - `bound`: seconds that no kernel could beat.
    - `expected`: seconds with kernels as efficient as those measured on devices of kind `basis`.
    - `basis`: "gpu", "cpu" or "cpu and gpu".
    - `nbytes`: memory that the step needs; `fits` is True if the device has it.
    - `joules`: projected energy of multiply-adds and of bytes from memory.
    """

    device: EdgeDevice
    precision: str
    plan: Plan
    launches: int
    bound: float
    expected: float
    basis: str
    nbytes: int
    joules: float

    @property
    def fits(self) -> bool:
        return self.nbytes <= self.device.memory


@dataclass(frozen=True)
class KindError:
    """How far off predictions for one kind of device are.

    Arguments:
    - `kind`: "cpu" or "gpu".
    - `median`: of the absolute relative errors over measured devices of the kind and their steps, each device predicted
      from the others.
    - `devices`: how many of the kind were measured; with one, it is predicted from devices of other kinds.
    """

    kind: str
    median: float
    devices: int

    def __str__(self) -> str:
        return f"±{self.median:.0%} ({plural(self.devices, self.kind.upper())})"


@dataclass(frozen=True, repr=False)
class Projection(Displayed):
    """Estimates of one step on several devices, and the measurements that they are based on.

    Arguments:
    - `name`: of the step, such as "training step".
    - `estimates`: one for each device and precision.
    - `records`: measurements of other devices.
    """

    name: str
    estimates: tuple[Estimate, ...]
    records: tuple[DeviceRecord, ...] = field(repr=False)

    @property
    def headline(self) -> str:
        return f"of a {self.name} to {plural(len({e.device.name for e in self.estimates}), 'device')}"

    @property
    def errors(self) -> dict[str, dict[str, float]]:
        """Relative error by measured device and step of a prediction from the other devices; above 0 where it is too
        long."""
        errors: dict[str, dict[str, float]] = {}
        for record, step, seconds in leave_one_out(self.records) if len(self.records) > 1 else []:
            errors.setdefault(record.name, {})[step.name] = seconds / step.wall - 1
        return errors

    @property
    def errors_by_kind(self) -> dict[str, KindError]:
        """The errors of `errors`, in the median over devices of a kind."""
        kinds: dict[str, list[str]] = {}
        for record in self.records:
            kinds.setdefault(record.device["kind"], []).append(record.name)
        errors = self.errors
        found = {
            kind: [abs(e) for name in names for e in errors.get(name, {}).values()] for kind, names in kinds.items()
        }
        return {kind: KindError(kind, median(e), len(kinds[kind])) for kind, e in found.items() if e}

    def error_of(self, estimate: Estimate) -> KindError | None:
        """The error of predictions for the estimate's kind of device, None if no device of the kind was measured."""
        return self.errors_by_kind.get(estimate.device.kind)

    def to_dict(self) -> dict[str, Any]:
        """Estimates with their errors, and what they rest on, as JSON values."""
        return {
            "name": self.name,
            "estimates": [
                {"device": e.device.name, "kind": e.device.kind}
                | {name: getattr(e, name) for name in _ESTIMATED}
                | {"error": asdict(error) if (error := self.error_of(e)) else None}
                for e in self.estimates
            ],
            "errors": self.errors,
            "assumptions": list(ASSUMPTIONS),
            "sources": {e.device.name: dict(e.device.sources) for e in self.estimates},
        }  # fmt: skip

    @property
    def sources(self) -> str:
        """Where the figures of the devices are from, as text."""
        devices = {estimate.device.name: estimate.device for estimate in self.estimates}.values()
        return "\n".join(
            line for device in devices for line in (device.name, *(f"  {k}: {v}" for k, v in device.sources.items()))
        )


def project(
    request: Request, devices: Sequence[EdgeDevice] | None = None, name: str = "", records: Sequence[DeviceRecord] = ()
) -> Projection:
    """Predict a step on devices that are not here.

    Arguments:
    - `request`: the step: `plan.request` of a plan.
    - `devices`: default: all that are described in the package.
    - `name`: of the step, for reports (default: the network's).
    - `records`: measurements to take efficiencies from (default: those in the package).

    Raises as `make_plan`.
    """
    records = tuple(records) or shipped()
    devices = [EdgeDevice.load(name) for name in edge_devices()] if devices is None else devices
    estimates = tuple(
        _estimate(request, device, precision, records) for device in devices for precision in device.flops
    )
    return Projection(name or request.network.name, estimates, records)


def _estimate(request: Request, device: EdgeDevice, precision: str, records: Sequence[DeviceRecord]) -> Estimate:
    plan = make_plan(request, device.device(), traits=device.traits())
    peaks, width = device.peaks(precision), WIDTHS[precision]
    launches = plan.step_launches
    roofs = bounds(plan, launches, peaks, width)
    measured = like(device.kind, records)
    basis, share = " and ".join(sorted({r.device["kind"] for r in measured})), efficiencies(measured)
    seconds = expected([(kind(x), bound, 1) for x, bound in zip(launches, roofs, strict=True)], share, peaks.launch)
    least = sum(roofs) + len(launches) * peaks.launch
    nbytes, energy = round(plan.peak_bytes * width), device.picojoules
    moved, multiply_adds = sum(x.nbytes for x in launches) * width, sum(x.flops for x in launches) / 2
    joules = (moved * energy["byte"] + multiply_adds * energy[precision]) / 1e12
    return Estimate(device, precision, plan, len(launches), least, seconds, basis, nbytes, joules)
