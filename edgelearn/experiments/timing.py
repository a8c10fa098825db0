"""How long the work of a training took, kept in its run's folder: the next one of the same plan knows its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from edgelearn import atomic, records
from edgelearn.compile import Plan
from edgelearn.device import Device
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.summary import RunSummary

from .config import Config

FILE = "timing.json"
_RUNS = 50  # earlier ones that are looked at


class Timing(TypedDict):
    """The file: the device and the plans, seconds of a unit by kind of work, those of the whole training after it was
    loaded, without compilation, and what trainings of other plans on the device can expect."""

    plan: dict[str, Any]
    seconds: dict[str, float]
    total: NotRequired[float]
    learned: NotRequired[dict[str, float]]


def plan_key(phases: Mapping[str, Plan], device: Device, sizes: Sequence[int]) -> dict[str, Any]:
    """What trainings have in common whose steps take equally long."""
    found = {name: [plan.peak_bytes, len(plan.step_launches)] for name, plan in phases.items()}
    return {"device": device.facts()["name"], "sizes": list(sizes), "phases": found}


def save(folder: Path, timing: Timing) -> None:
    """Write the file of the run in `folder`."""
    atomic.write_json(folder / FILE, timing)


def of_plan(store: RunStore, kind: str, plan: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds of a unit in the newest run of this kind with the same plan on the same device; None if there is none."""
    for timing in _read([each for each in store.list() if each.kind == kind]):
        if timing["plan"] == plan:
            return timing["seconds"]
    return None


def of_device(store: RunStore, device: Device) -> dict[str, float]:
    """Values that the newest runs on this device have learned, whatever they trained; {} if there are none."""
    name, found = device.facts()["name"], dict[str, float]()
    for timing in _read(store.list()):
        if timing["plan"].get("device") == name:
            found = timing.get("learned", {}) | found
    return found


def of_config(store: RunStore, config: Config) -> float | None:
    """Seconds that the newest run with these settings took after it was loaded, compilation left out, whatever its
    seed; None if there is none."""
    settings = {name: json.loads(json.dumps(value)) for name, value in config.to_dict().items() if name != "seed"}
    given = {name: value for name, value in settings.items() if value is not None}  # others the experiment chooses
    same = [
        each
        for each in store.list()
        if settings.keys() <= each.config.keys() and all(each.config[name] == value for name, value in given.items())
    ]
    return next((timing["total"] for timing in _read(same) if "total" in timing), None)


def _read(runs: Sequence[RunSummary]) -> Iterator[Timing]:
    """The files of the first of these runs that have one."""
    for summary in runs[:_RUNS]:
        with suppress(OSError, records.RecordError):
            yield records.read(summary.folder / FILE, Timing)
