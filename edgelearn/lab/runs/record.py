"""Entries of a run's record and history, as they are checked when they are written and when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from edgelearn import atomic, records
from edgelearn.errors import FormatError, RunError

FORMAT = 1
RECORD = "run.json"


class Memory(TypedDict, total=False):
    """Bytes."""

    planned: int | None
    allocated: int | None
    process: int | None


class Results(TypedDict, total=False):
    """Results that comparisons and figures read. A run may have others too."""

    correct: int | None
    total: int | None
    accuracy: float | None
    loss: float | None
    epochs: int | None
    seconds: float | None
    interval: list[float] | None
    memory: Memory | None


class Device(TypedDict, total=False):
    """Facts of a device."""

    name: str


class _Needed(TypedDict):
    format: int
    kind: str
    status: Literal["running", "finished", "failed"]
    config: dict[str, Any]
    started: str


class Record(_Needed, total=False):
    """A run's record; a run may have other entries too."""

    updated: str | None
    environment: dict[str, Any] | None
    device: Device | None
    results: Results | None
    before: dict[str, float | None]
    seconds: float
    resumed: list[dict[str, Any]]
    error: dict[str, Any] | None


class _Epoch(TypedDict):
    epoch: int


class Row(_Epoch, total=False):
    """A row of the history; it may have other entries too."""

    loss: float | None
    accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None
    seconds: float | None


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record of a run. Raises FormatError if it is missing, damaged or of a newer edgelearn."""
    path = folder / RECORD
    try:
        record = records.read(path, Record)
    except OSError as error:
        raise FormatError(f"{path} can't be read: {error.strerror}. Restore it or delete the folder.") from error
    except records.RecordError as error:
        raise FormatError(f"{path} is damaged ({error}). Restore it from a backup or delete the folder.") from error
    if record["format"] > FORMAT:
        raise FormatError(
            f"{path} was written by a newer edgelearn (format {record['format']}, this one reads up to {FORMAT}). "
            f"Update edgelearn."
        )
    return dict(record)


def normal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as it will be read, so that a run looks the same now and later. Raises RunError for entries that
    can't be saved."""
    return _checked(record, Record)


def normal_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the history as it will be read. Raises RunError for entries that can't be saved."""
    return _checked(row, Row)


def _checked(value: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    try:
        return records.parse(atomic.to_json(value), kind)
    except records.RecordError as error:
        raise RunError(
            f"A run can't keep this: {error}. Store it under another name, or as the type expected."
        ) from None
