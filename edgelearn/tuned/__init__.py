"""Measured configurations and times by kind of device, as files.

Tuning results are one JSON file for each kind of device; the user's own take precedence over those shipped next to this
module. Launch times are a file for each kind of device in the user's folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypedDict

from platformdirs import user_data_path

from edgelearn import atomic, caches, records
from edgelearn.device import Device, DeviceKind, KernelConfig
from edgelearn.display import plural
from edgelearn.errors import FormatError, RunError

VARIABLE = "EDGELEARN_TUNED"
ROOM = 1_000_000  # bytes


def chosen() -> Path:
    """EDGELEARN_TUNED if set, else edgelearn/tuned in the user's data folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_data_path("edgelearn", appauthor=False) / "tuned"


def user_folder() -> Path:
    """EDGELEARN_TUNED if set, else edgelearn/tuned in the user's data folder; a temporary folder where that can't be
    made."""
    folder = chosen()
    if os.environ.get(VARIABLE) or folder.is_dir():  # results that can be read are read, also where none can be written
        return folder
    return caches.place(folder, VARIABLE, ROOM).folder or folder


def write(path: Path, text: str, what: str) -> None:
    """Write a file atomically. Raises FormatError, naming the content as `what`, if it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, text.encode())
    except (OSError, RunError) as error:
        raise FormatError(
            f"The {what} cannot be written to {path} ({error}): name a folder that can be written in the environment "
            f"variable EDGELEARN_TUNED."
        ) from None


FORMAT = 1
LARGEST = 4 << 20  # bytes: larger files are refused
NOT_TUNED = "not tuned for this kind of device, so kernels use safe defaults: `edgelearn tune` finds faster ones"


@dataclass
class TuningResults:
    """Tuning results for one kind of device.

    Arguments:
    - `kind`: the kind of device.
    - `measured`: device and date, and under "workloads" the seconds per step before and after tuning, by workload.
    - `choices`: the fastest configuration by name of the decision.
    """

    kind: DeviceKind
    measured: dict = field(default_factory=dict)
    choices: dict[str, KernelConfig] = field(default_factory=dict)

    @property
    def workloads(self) -> dict[str, dict]:
        return self.measured.setdefault("workloads", {})


class _Measured(TypedDict, total=False):
    workloads: dict[str, dict]


@dataclass(frozen=True)
class _File:
    """Tuning results in a file."""

    format: Literal[1]
    kind: DeviceKind
    measured: _Measured
    choices: dict[str, KernelConfig]

    def __post_init__(self) -> None:
        if self.kind.vector_width < 1 or self.kind.compute_units < 1:
            raise ValueError(
                f"its kind of device has {self.kind.vector_width} and {self.kind.compute_units} as numbers"
            )


@dataclass(frozen=True)
class DeviceTuning:
    """Tuning results that fit a device.

    Arguments:
    - `choices`: configurations by name of a decision (default none).
    - `files`: where they are from; of all that fit, their choices come first.
    """

    choices: dict[str, KernelConfig] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    def __str__(self) -> str:
        if not self.files:
            return NOT_TUNED
        return f"tuned: {plural(len(self.choices), 'choice')} from {' and '.join(str(path) for path in self.files)}"


def shipped() -> Path:
    """Folder of the results shipped with the package."""
    return Path(__file__).parent


def folders() -> tuple[Path, Path]:
    """Folders searched for results, in order of precedence."""
    return user_folder(), shipped()


def find(device: Device) -> DeviceTuning:
    """Find the configurations for `device`: from each folder the file of the closest kind, the user's choices before
    shipped ones. Raises FormatError for a damaged file."""
    kind, choices, files = DeviceKind.of(device), {}, []
    for folder in folders():
        fitting = [(d, path, r) for path, r in _results(folder) if (d := kind.distance(r.kind)) is not None]
        if fitting:
            _, path, results = min(fitting, key=lambda item: item[:2])
            choices = results.choices | choices
            files.append(path)
    return DeviceTuning(choices, tuple(files))


def load(path: Path) -> TuningResults:
    """Read what `save` wrote. Raises FormatError for other files."""
    try:
        file = records.read(path, _File, LARGEST)
    except (OSError, records.RecordError) as error:
        raise FormatError(
            f"The tuning results in {path} cannot be used: {error}. Delete the file; `edgelearn tune` makes a new one."
        ) from None
    return TuningResults(file.kind, dict(file.measured), file.choices)


def path_of(kind: DeviceKind, folder: Path) -> Path:
    return folder / f"{kind.slug}.json"


def save(results: TuningResults, folder: Path) -> Path:
    """Write the results to `folder` atomically and return the path. Raises FormatError if that fails."""
    path = path_of(results.kind, folder)
    head = {"format": FORMAT, "kind": results.kind.to_dict(), "measured": results.measured}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(choice)}" for name, choice in sorted(results.choices.items()))
    text = f'{json.dumps(head, indent=1)[:-2]},\n "choices": {{\n{rows}\n }}\n}}\n'
    write(path, text, "tuning results")
    return path


def _results(folder: Path) -> Iterator[tuple[Path, TuningResults]]:
    for path in sorted(folder.glob("*.json")):
        stat = path.stat() if path.exists() else None
        yield path, _loaded(path, stat and (stat.st_ino, stat.st_mtime_ns, stat.st_size))


@lru_cache(64)
def _loaded(path: Path, version: tuple[int, ...] | None) -> TuningResults:
    """Read results once for each version of a file, since every plan asks for them."""
    return load(path)


TIMES_FORMAT = 2


@dataclass(frozen=True)
class MeasuredTimes:
    """Measured times of one kind of device.

    Arguments:
    - `date`: date of the last measurement.
    - `between`: overhead of each launch in seconds.
    - `fixed`: overhead of each step in seconds.
    - `seconds`: time by description of the launch (see `compile.search.launch_key`).
    """

    date: str
    between: float
    fixed: float
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in (self.between, self.fixed, *self.seconds.values())):
            raise ValueError("its times are not all numbers of seconds")


def path_of_times(device: Device) -> Path:
    return user_folder() / "costs" / f"{DeviceKind.of(device).slug}.json"


def load_times(device: Device) -> MeasuredTimes | None:
    """Load the times for this kind of device, or None if there are none. Raises FormatError for a damaged file."""
    path = path_of_times(device)
    return read_times(path) if path.exists() else None


def read_times(path: Path) -> MeasuredTimes:
    """Read a file that `save` wrote. Raises FormatError for other files."""
    try:
        found = records.read(path, dict)
        if found.pop("format", None) != TIMES_FORMAT:
            raise records.RecordError(f"it is not of format {TIMES_FORMAT}")
        return records.convert(found, MeasuredTimes)
    except (OSError, records.RecordError) as error:
        raise FormatError(
            f"The launch times in {path} cannot be used: {error}. Delete the file and measure again with "
            f"`edgelearn memory measure`."
        ) from None


def save_times(table: MeasuredTimes, device: Device) -> Path:
    """Merge a table into the file and return its path. Raises FormatError if it can't be written."""
    path, older = path_of_times(device), load_times(device)
    merged = {"format": TIMES_FORMAT} | asdict(table) | {"seconds": (older.seconds if older else {}) | table.seconds}
    write(path, json.dumps(merged, indent=1), "launch times")
    return path
