"""Measured launch times: a JSON file for each kind of device in the user's folder."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgelearn import records
from edgelearn.device import Device
from edgelearn.device.kind import DeviceKind
from edgelearn.errors import FormatError

from .files import user_folder, write

FORMAT = 2


@dataclass(frozen=True)
class Table:
    """Measured times of one kind of device.

    Arguments:
    - `date`: date of the last measurement.
    - `between`: overhead of each launch in seconds.
    - `fixed`: overhead of each step in seconds.
    - `seconds`: time by description of the launch (see compile/memory/launch_times.py).
    """

    date: str
    between: float
    fixed: float
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in (self.between, self.fixed, *self.seconds.values())):
            raise ValueError("its times are not all numbers of seconds")


def path_of(device: Device) -> Path:
    return user_folder() / "costs" / f"{DeviceKind.of(device).slug}.json"


def load(device: Device) -> Table | None:
    """Load the times for this kind of device, or None if there are none. Raises FormatError for a damaged file."""
    path = path_of(device)
    return read(path) if path.exists() else None


def read(path: Path) -> Table:
    """Read a file that `save` wrote. Raises FormatError for other files."""
    try:
        found = records.read(path, dict)
        if found.pop("format", None) != FORMAT:
            raise records.RecordError(f"it is not of format {FORMAT}")
        return records.convert(found, Table)
    except (OSError, records.RecordError) as error:
        raise FormatError(
            f"The launch times in {path} cannot be used: {error}. Delete the file and measure again with "
            f"`edgelearn memory measure`."
        ) from None


def save(table: Table, device: Device) -> Path:
    """Merge a table into the file and return its path. Raises FormatError if it can't be written."""
    path, older = path_of(device), load(device)
    merged = {"format": FORMAT} | asdict(table) | {"seconds": (older.seconds if older else {}) | table.seconds}
    write(path, json.dumps(merged, indent=1), "launch times")
    return path
