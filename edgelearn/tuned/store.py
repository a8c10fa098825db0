"""Results of tuning as files: one JSON file for each kind of device, those shipped beside this module, and a user's own
in a folder, which win."""

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
LARGEST = 4 << 20  # bytes of a file worth reading
NOT_TUNED = "not tuned for this kind of device, so kernels use safe defaults: `edgelearn tune` finds faster ones"

KernelConfig = dict[str, int]


@dataclass
class TuningResults:
    """What tuning found on devices like `kind`. `choices` are by the name of the decision. `measured` says on what and
    when, and under "workloads" by the name of each its step in seconds before and after."""

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
    """The folder of the results that come with the package."""
    return Path(__file__).parent


def folders() -> tuple[Path, Path]:
    """Where results are looked for: what the first has wins."""
    return user_folder(), shipped()


def find(device: Device) -> DeviceTuning:
    """What is known to be fastest on `device`: of each folder the file whose kind is closest, the user's choices before
    those that are shipped. Raises FormatError for a damaged file, naming it."""
    kind, choices, files = DeviceKind.of(device), {}, []
    for folder in folders():
        fitting = [(d, path, r) for path, r in _results(folder) if (d := kind.distance(r.kind)) is not None]
        if fitting:
            _, path, results = min(fitting, key=lambda item: item[:2])
            choices = results.choices | choices
            files.append(path)
    return DeviceTuning(choices, tuple(files))


def load(path: Path) -> TuningResults:
    """Raises FormatError, saying what is wrong and what to do, for a file that `save` did not write."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST:,} bytes")
        return _checked(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise FormatError(
            f"The results of tuning in {path} cannot be used: {error}. Delete the file, and tune again with "
            f"`edgelearn tune` if you like."
        ) from None


def path_of(kind: DeviceKind, folder: Path) -> Path:
    """The file for results of this kind."""
    return folder / f"{kind.slug}.json"


def save(results: TuningResults, folder: Path) -> Path:
    """Write the file of this kind of device, all or nothing. Raises FormatError where the folder can't be written."""
    path = path_of(results.kind, folder)
    head = {"format": FORMAT, "kind": results.kind.to_dict(), "measured": results.measured}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(choice)}" for name, choice in sorted(results.choices.items()))
    text = f'{json.dumps(head, indent=1)[:-2]},\n "choices": {{\n{rows}\n }}\n}}\n'
    write(path, text, "results of tuning")
    return path


def _results(folder: Path) -> Iterator[tuple[Path, TuningResults]]:
    for path in sorted(folder.glob("*.json")):
        yield path, load(path)


def _checked(content: object) -> TuningResults:
    """Raises ValueError saying what is wrong."""
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
        raise ValueError("it does not say on what it was measured")
    if not isinstance(choices, dict):
        raise ValueError("it has no choices")
    for name, choice in choices.items():
        if not isinstance(choice, dict) or any(type(value) is not int for value in choice.values()):
            raise ValueError(f"the choice for {name!r} is not made of whole numbers")
    return TuningResults(DeviceKind(**kind), measured, choices)
