"""Files beside a run's record: name, tags and note, which its reader writes, and how far it is, which the writer says.

notes.json      name, tags and note; anybody may write it, also while the run is written or after it has finished
progress.json   phase, steps and time left of a training; renewed about once a second, without flushing the disk
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from edgelearn import atomic, records
from edgelearn.errors import FormatError, RunError

NOTES, PROGRESS = "notes.json", "progress.json"
LONGEST = {"name": 200, "tag": 60, "note": 20_000}  # characters


class Notes(TypedDict, total=False):
    """Texts that a reader gives a run."""

    name: str
    tags: list[str]
    note: str


class ProgressEntry(TypedDict):
    """How far a training is. `left`: seconds until its end, None while that isn't known."""

    phase: str
    done: int
    total: int
    left: float | None


def read_notes(folder: Path) -> dict[str, Any]:
    """Name, tags and note of the run in `folder`, empty where none was given. Raises FormatError for a damaged file."""
    path = folder / NOTES
    empty = {"name": "", "tags": [], "note": ""}
    try:
        found: Any = records.read(path, Notes)
        return {name: found.get(name, value) for name, value in empty.items()}
    except FileNotFoundError:
        return empty
    except (OSError, records.RecordError) as error:
        raise FormatError(f"{path} is damaged ({error}). Delete it: the run is complete without it.") from error


def write_notes(
    folder: Path, name: str | None = None, tags: Iterable[str] | None = None, note: str | None = None
) -> dict[str, Any]:
    """Change the texts that are given, and return all. Raises RunError for texts that are too long, or if they can't be
    written."""
    given: dict[str, Any] = {}
    if name is not None:
        given["name"] = _text("name", " ".join(name.split()))
    if tags is not None:
        if isinstance(tags, str):
            raise RunError(f"tags is a list of texts, such as ['baseline'], not {tags!r:.60}.")
        given["tags"] = list(dict.fromkeys(_text("tag", " ".join(tag.split())) for tag in tags if tag.strip()))
    if note is not None:
        given["note"] = _text("note", note.strip())
    notes = read_notes(folder) | given
    atomic.write_json(folder / NOTES, notes)
    return notes


def _text(what: str, text: str) -> str:
    if len(text) > LONGEST[what]:
        raise RunError(f"The {what} has {len(text):,} characters: use {LONGEST[what]:,} at most.")
    return text


def write_progress(folder: Path, progress: ProgressEntry) -> None:
    """Say how far the run is. What can't be written is left out: the training goes on without it."""
    temporary = folder / f".{PROGRESS}{atomic.TEMPORARY_SUFFIX}"
    with suppress(OSError):
        temporary.write_text(json.dumps(progress))
        os.replace(temporary, folder / PROGRESS)


def read_progress(folder: Path) -> dict[str, Any] | None:
    """How far the run in `folder` was when its writer said so last, or None if it hasn't."""
    try:
        return dict(records.read(folder / PROGRESS, ProgressEntry))
    except (OSError, records.RecordError):
        return None
