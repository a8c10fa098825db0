"""Tuning results: one JSON file for each kind of device. The user's own files take precedence over those shipped next
to this module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from edgelearn.device import Device
from edgelearn.device.kind import DeviceKind
from edgelearn.errors import FormatError

from .files import user_folder, write

FORMAT = 1
LARGEST = 4 << 20  # bytes: larger files are refused
NOT_TUNED = "not tuned for this kind of device, so kernels use safe defaults: `edgelearn tune` finds faster ones"

KernelConfig = dict[str, int]


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
        return f"tuned: {len(self.choices)} choices from {' and '.join(str(path) for path in self.files)}"


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
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST:,} bytes")
        return _checked(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise FormatError(
            f"The tuning results in {path} cannot be used: {error}. Delete the file; `edgelearn tune` makes a new one."
        ) from None


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
        yield path, load(path)


def _checked(content: object) -> TuningResults:
    """Validate the content of a file. Raises ValueError with the problem."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}, the one that this edgelearn writes")
    kind, measured, choices = (content.get(key) for key in ("kind", "measured", "choices"))
    types = {f.name: int if f.type == "int" else str for f in fields(DeviceKind)}
    if not isinstance(kind, dict) or set(kind) != set(types):
        raise ValueError(f"its kind of device needs {', '.join(types)}")
    for name, wanted in types.items():
        if type(kind[name]) is not wanted or (wanted is int and kind[name] < 1):
            raise ValueError(f"its kind of device has {kind[name]!r} as {name}")
    if not isinstance(measured, dict) or not isinstance(measured.get("workloads", {}), dict):
        raise ValueError("its 'measured' is missing or damaged")
    if not isinstance(choices, dict):
        raise ValueError("its 'choices' are missing")
    for name, choice in choices.items():
        if not isinstance(choice, dict) or any(type(value) is not int for value in choice.values()):
            raise ValueError(f"its choice for {name!r} has values that are not integers")
    return TuningResults(DeviceKind(**kind), measured, choices)
