"""What launches took on a device: a JSON file for each kind of device in the user's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgelearn.device import Device
from edgelearn.device.kind import DeviceKind
from edgelearn.errors import FormatError

from .files import user_folder, write

FORMAT = 2


@dataclass(frozen=True)
class Table:
    """`seconds` by what the launch is (see graph/costs.py), and what a step takes besides: `between` seconds for each
    launch, and `fixed` seconds whatever it launches. `date` is that of the last measurement."""

    date: str
    between: float
    fixed: float
    seconds: dict[str, float] = field(default_factory=dict)


def path_of(device: Device) -> Path:
    return user_folder() / "costs" / f"{DeviceKind.of(device).slug}.json"


def load(device: Device) -> Table | None:
    """What was measured on this kind of device; None where nothing was. Raises FormatError for a damaged file."""
    path = path_of(device)
    try:
        found = json.loads(path.read_text("utf-8"))
        if found.pop("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        table = Table(**found)
        numbers = table.between, table.fixed, *table.seconds.values()
        if not all(isinstance(value, float) and value >= 0 for value in numbers):
            raise ValueError("its costs are not all numbers of seconds")
        return table
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"The costs of launches in {path} can't be used: {error}. Delete the file, and measure again with "
            f"`edgelearn memory measure`."
        ) from None


def save(table: Table, device: Device) -> Path:
    """Keep a table, with what an older one knows of other launches. Raises FormatError where it can't be written."""
    path, older = path_of(device), load(device)
    merged = {"format": FORMAT} | asdict(table) | {"seconds": (older.seconds if older else {}) | table.seconds}
    write(path, json.dumps(merged, indent=1), "costs of launches")
    return path
