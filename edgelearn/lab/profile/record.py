"""Measurements on a device as data: times of steps, and how close to the roof each kind of launch came."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

from edgelearn import records
from edgelearn.errors import FormatError

from .peaks import Peaks
from .roofline import Point, Roofline

FOLDER = Path(__file__).with_name("measured")


class Facts(TypedDict):
    """Entries that are read of a device's facts."""

    platform: str
    name: str
    kind: str
    compute_units: int


@dataclass(frozen=True)
class _Limits:
    """Peaks in a file."""

    flops: float
    bandwidth: dict[int, float]
    launch: float
    units: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Step:
    """A step in a file."""

    name: str
    wall: float
    kinds: tuple[Point, ...]


@dataclass(frozen=True)
class _File:
    """A record in a file."""

    device: Facts
    date: str
    peaks: _Limits
    steps: tuple[_Step, ...]

    def __post_init__(self) -> None:
        points = [point for step in self.steps for point in step.kinds]
        if not points or not self.peaks.bandwidth:
            raise ValueError("it has no steps, or no bandwidth")
        figures = [number for point in points for number in (point.seconds, point.bound)]
        figures += [self.peaks.flops, self.peaks.launch, *self.peaks.bandwidth.values(), *self.peaks.units.values()]
        if not all(0 < figure < math.inf for figure in figures):
            raise ValueError("times and peaks are numbers above 0")


@dataclass(frozen=True)
class StepRecord:
    """A measured step: `wall` seconds of the host's clock, and its launches by kind."""

    name: str
    wall: float
    points: tuple[Point, ...]

    @property
    def launches(self) -> int:
        return sum(point.launches for point in self.points)


@dataclass(frozen=True)
class DeviceRecord:
    """Steps measured on one device.

    Arguments:
    - `device`: its facts, as a run records them.
    - `date`: of the measurement.
    - `peaks`: its measured limits.
    - `steps`: launches and times of each step.
    """

    device: Facts
    date: str
    peaks: Peaks
    steps: tuple[StepRecord, ...]

    @classmethod
    def of(cls, rooflines: Sequence[Roofline]) -> DeviceRecord:
        """The record of rooflines measured on one device."""
        steps = tuple(StepRecord(r.name, r.wall, tuple(r.by_kind())) for r in rooflines)
        today = datetime.date.today().isoformat()
        return cls(cast(Facts, rooflines[0].device.facts()), today, rooflines[0].peaks, steps)

    @property
    def name(self) -> str:
        units = self.device["compute_units"]
        return f"{self.device['platform']} / {self.device['name']}, {units} compute unit{'s' * (units > 1)}"

    def to_dict(self) -> dict:
        steps = [{"name": s.name, "wall": s.wall, "kinds": [asdict(point) for point in s.points]} for s in self.steps]
        return {"device": dict(self.device), "date": self.date, "peaks": self.peaks.to_dict(), "steps": steps}

    @classmethod
    def load(cls, path: Path) -> DeviceRecord:
        """Raises FormatError for a file that `edgelearn profile --save` did not write."""
        try:
            file = records.read(path, _File)
        except (OSError, records.RecordError) as error:
            raise FormatError(f"{path} is no record of `edgelearn profile --save`: {error}. Write it anew.") from None
        steps = tuple(StepRecord(step.name, step.wall, step.kinds) for step in file.steps)
        return cls(file.device, file.date, Peaks(**vars(file.peaks)), steps)


@cache
def shipped() -> tuple[DeviceRecord, ...]:
    """The records that are part of the package."""
    return tuple(DeviceRecord.load(path) for path in sorted(FOLDER.glob("*.json")))


def efficiencies(records: Iterable[DeviceRecord]) -> dict[str, float]:
    """Share of the roof by kind of launch over all steps of `records`; "": over all launches, for unknown kinds."""
    bound: dict[str, float] = {}
    taken: dict[str, float] = {}
    for record in records:
        for step in record.steps:
            for point in step.points:
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
            launches = [(point.name, point.bound, point.launches) for point in step.points]
            predictions.append((record, step, expected(launches, others, record.peaks.launch)))
    return predictions


def expected(launches: Iterable[tuple[str, float, int]], efficiency: Mapping[str, float], launch: float) -> float:
    """Predicted seconds of (kind, seconds at the roof, number) of launches, each costing `launch` seconds as well."""
    return sum(bound / efficiency.get(name, efficiency[""]) + count * launch for name, bound, count in launches)
