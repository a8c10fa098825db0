"""The run store: what was run, on what, with which result. A run is a folder:

    run.json                            the record: config, seed, environment, device, status, results
    history.jsonl                       a row per epoch
    checkpoint.safetensors              where a resumed run goes on
    checkpoint-previous.safetensors     the one before, for a kill between two renames
    lock                                held while a process writes the run

Names that comparison and figures look for (all optional). In a history row: `epoch`, `loss`, `accuracy`,
`val_loss`, `val_accuracy` (shares in [0, 1]), `seconds`. In the results: `correct`, `total`, `accuracy`,
`loss`, `epochs`, `seconds`, and `memory` with `planned`, `allocated` and `process` in bytes.
In the device: `name`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgelearn import atomic
from edgelearn.errors import EdgelearnError, FormatError, RunError

from . import checkpoint
from .environment import environment
from .lock import Lock, is_held

FORMAT = 1
RECORD, HISTORY, LOCK = "run.json", "history.jsonl", "lock"
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"

_KIND = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ID = re.compile(r".+-\d{8}-\d{6}-[0-9a-f]{4}")
_FIXED = {
    "format",
    "id",
    "kind",
    "config",
    "environment",
    "status",
    "started",
    "updated",
    "finished",
    "resumed",
}
_UNFINISHED_PREFIX = ".creating-"
_UNFINISHED_AGE_SECONDS = 3600.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs. A damaged run has status "damaged" and the reason in `problem`."""

    id: str
    folder: Path
    status: str
    started: str
    kind: str = ""
    updated: str = ""
    epochs: int = 0
    device: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


class Run:
    """One run: to write from `RunStore.create`, to read from `RunStore.open`, to go on with after `resume`.

    As a context manager it fails the run on an exception and always gives the lock back:

        with store.create("flowers", config) as run:
            run.append_epoch({"epoch": 1, "loss": 0.7})
            run.finish({"correct": 670, "total": 736})

    A run that is closed without `finish` or `fail`, or whose process is gone, is "interrupted".
    """

    def __init__(self, folder: Path, lock: Lock | None = None) -> None:
        self.folder = folder
        self._lock = lock or Lock(folder / LOCK)
        self._writing = threading.RLock()
        self.record: dict[str, Any] = _read_record(folder)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked to do; fixed when it was created."""
        return self.record["config"]

    @property
    def status(self) -> str:
        """ "running", "interrupted", "finished" or "failed", as of now."""
        if self._lock.held:
            return self.record["status"]
        # The lock is looked at first: a run that ends in between has its final record by then.
        running = is_held(self.folder / LOCK)
        self.record = _read_record(self.folder)
        if self.record["status"] == "running" and not running:
            return "interrupted"
        return self.record["status"]

    def resume(self) -> Run:
        """Take the run over to go on with it, and return it.

        Raises RunError if it is finished or if another process is writing it.
        """
        with self._writing:
            if self._lock.held:
                return self
            self._lock.acquire()
            try:
                self.record = _read_record(self.folder)
                if self.record["status"] == "finished":
                    raise RunError(f"Run {self.id} is finished: there is nothing to resume. Start a new run.")
                atomic.remove_leftovers(self.folder)
                again = {"time": _now(), "environment": environment()}
                self._write(status="running", error=None, resumed=[*self.record.get("resumed", []), again])
            except BaseException:
                self._lock.release()
                raise
        return self

    def update(self, **fields: Any) -> None:
        """Put fields such as device, data, weights or results into the record and save it.

        Raises RunError for the fields a run keeps itself, or if the run is not open for writing.
        """
        if fixed := sorted(_FIXED & fields.keys()):
            raise RunError(f"A run keeps {', '.join(fixed)} itself; update other fields, such as results.")
        self._write(**fields)

    def append_epoch(self, row: Mapping[str, Any]) -> None:
        """Add a row to the history; `row["epoch"]` is its number (an integer).

        An epoch that is run again after a resume replaces its old row and those after it.
        """
        epoch = row.get("epoch")
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer):
            raise RunError(f"A history row needs its number as an integer 'epoch', but has {epoch!r}.")
        with self._writing:
            self._require_lock()
            atomic.append_line(self.folder / HISTORY, atomic.to_json(row))
            self._write()

    def history(self) -> list[dict[str, Any]]:
        """The rows so far, epochs ascending. Raises FormatError if a complete line is damaged."""
        path = self.folder / HISTORY
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(atomic.read_lines(path), start=1):
            try:
                row = json.loads(line)
                epoch = row["epoch"] + 0
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(
                    f"{path}, line {number} is damaged: {line[:60]!r}. Restore the file or delete that line."
                ) from error
            while rows and rows[-1]["epoch"] >= epoch:
                rows.pop()
            rows.append(row)
        return rows

    def save_checkpoint(self, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Save tensors by name (any shape; boolean, integer or float) and a state that JSON can hold.

        The checkpoint so far becomes the previous one. Raises RunError if it can't be written; both
        checkpoints on the disk then stay as they are.
        """
        with self._writing:
            self._require_lock()
            data = checkpoint.encode(tensors, state)
            atomic.write_bytes(self.folder / CHECKPOINT, data, previous=self.folder / PREVIOUS)

    def load_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Tensors and state of the last checkpoint.

        If a kill left no current checkpoint, the previous one is read, with a warning in the log.
        Raises RunError if there is none, FormatError if it is corrupt.
        """
        current, previous = self.folder / CHECKPOINT, self.folder / PREVIOUS
        if current.exists():
            try:
                return checkpoint.read(current)
            except FormatError as error:
                remedy = f"to go on from {previous.name}" if previous.exists() else "and start a new run"
                raise FormatError(f"{error} Restore it from a backup, or delete it {remedy}.") from error
        if previous.exists():
            _log.warning("%s is missing; going on from %s.", current, previous.name)
            return checkpoint.read(previous)
        raise RunError(f"Run {self.id} has no checkpoint in {self.folder}: it can't go on. Start a new run.")

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to load."""
        return (self.folder / CHECKPOINT).exists() or (self.folder / PREVIOUS).exists()

    def finish(self, results: Mapping[str, Any]) -> None:
        """Save the results, mark the run as finished and close it."""
        self._write(status="finished", results=dict(results), finished=_now())
        self.close()

    def fail(self, error: BaseException | str) -> None:
        """Save what went wrong, mark the run as failed and close it. A failed run can be resumed."""
        kind = "" if isinstance(error, str) else type(error).__name__
        self._write(status="failed", error={"type": kind, "message": str(error)}, finished=_now())
        self.close()

    def close(self) -> None:
        """Give the lock back, so that any process may resume the run."""
        self._lock.release()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and self._lock.held:
                self.fail(error)
        except RunError as unsaved:
            error.add_note(f"The run could not be marked as failed: {unsaved}")
        finally:
            self.close()

    def _write(self, **fields: Any) -> None:
        with self._writing:
            self._require_lock()
            record = _normal(self.record | fields | {"updated": _now()})
            atomic.write_json(self.folder / RECORD, record)
            self.record = record

    def _require_lock(self) -> None:
        if not self._lock.held:
            raise RunError(f"Run {self.id} is open for reading only. Call resume() first to go on with it.")


class RunStore:
    """A folder of runs: `root`, or the environment's EDGELEARN_RUNS, or `runs` in the working folder."""

    def __init__(self, root: str | Path | None = None) -> None:
        # Absolute, because notebooks change the working folder.
        self.root = Path(root or os.environ.get("EDGELEARN_RUNS") or "runs").expanduser().absolute()

    def create(self, kind: str, config: Mapping[str, Any], **fields: Any) -> Run:
        """A new run, running and locked; `fields` (device, data, weights …) go into its record.

        Its id is the kind, the time (UTC) and four random digits, as in flowers-20261120-194501-3f2a.
        The seed is taken from the config. Raises RunError for an unusable kind or config or a folder that
        can't be written.
        """
        if not _KIND.fullmatch(kind):
            raise RunError(f"The kind {kind!r} can't name a folder: use lower-case letters, digits, '-', '_'.")
        if fixed := sorted(_FIXED & fields.keys()):
            raise RunError(f"A run keeps {', '.join(fixed)} itself; give other fields, such as device.")
        now = datetime.now(UTC)
        started = now.isoformat()
        record = {
            "format": FORMAT,
            "kind": kind,
            "status": "running",
            "config": dict(config),
            "seed": config.get("seed"),
            "environment": environment(),
            "device": {},
            "data": None,
            "weights": None,
            "started": started,
            "updated": started,
            "finished": None,
            "results": {},
            **fields,
        }
        _normal(record)  # fails before anything is on the disk
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            return self._create_folder(f"{kind}-{now:%Y%m%d-%H%M%S}", record)
        except OSError as error:
            raise atomic.explain(error, self.root / kind, len(atomic.to_json(record))) from error

    def open(self, name: str) -> Run:
        """The run whose id is `name`, or the only one whose id starts so; for reading, until `resume`.

        Raises RunError if there is none or more than one, FormatError if the run is damaged.
        """
        ids = [folder.name for folder in self._folders()]
        found = [name] if name in ids else [known for known in ids if name and known.startswith(name)]
        if len(found) == 1:
            return Run(self.root / found[0])
        if found:
            raise RunError(f"{len(found)} runs start with {name!r}: {_some(found)}. Give more of the id.")
        known = f"There are: {_some(ids)}." if ids else "There are none yet; EDGELEARN_RUNS names another folder."
        raise RunError(f"No run in {self.root} starts with {name!r}. {known}")

    def list(self) -> list[RunSummary]:
        """A summary of every run, newest first. A damaged one is listed as such."""
        return sorted(map(_summary, self._folders()), key=lambda s: (s.started, s.id), reverse=True)

    def newest_unfinished(self, kind: str) -> str:
        """The id of the run of `kind` that was begun last of those to resume. Raises RunError when there is none."""
        for summary in self.list():
            if summary.kind == kind and summary.status in ("interrupted", "failed"):
                return summary.id
        raise RunError(f"There is no interrupted {kind} run to resume. `edgelearn runs` lists what there is.")

    def _folders(self) -> list[Path]:
        """Folders that are runs; others may lie there too, as in any folder that is called `runs`."""
        try:
            found = [entry for entry in self.root.iterdir() if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"The runs in {self.root} can't be read: {error.strerror}. Check the folder.") from error
        return sorted(folder for folder in found if _ID.fullmatch(folder.name) or (folder / RECORD).exists())

    def _create_folder(self, stem: str, record: dict[str, Any]) -> Run:
        """Make the folder complete and locked under a hidden name, then rename it."""
        hidden = self.root / f"{_UNFINISHED_PREFIX}{secrets.token_hex(8)}"
        hidden.mkdir()
        try:
            lock = Lock(hidden / LOCK)
            lock.acquire()
            folder = self.root / f"{stem}-{secrets.token_hex(2)}"
            while folder.exists():
                folder = self.root / f"{stem}-{secrets.token_hex(2)}"
            atomic.write_json(hidden / RECORD, {"id": folder.name, **record})
            # If another process took the name just now, the rename fails: a run's folder is never empty.
            os.rename(hidden, folder)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        lock.path = folder / LOCK
        atomic.sync_folder(self.root)
        return Run(folder, lock)

    def _remove_unfinished(self) -> None:
        """Remove what was killed while being created; it is old, so nobody is creating it now."""
        for folder in self.root.glob(f"{_UNFINISHED_PREFIX}*"):
            try:
                if time.time() - folder.stat().st_mtime > _UNFINISHED_AGE_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
            except FileNotFoundError:
                pass  # its creator renamed it in between


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record = json.loads(path.read_bytes())
        if record["format"] > FORMAT:
            raise FormatError(
                f"{path} was written by a newer edgelearn (format {record['format']}, this one reads up to "
                f"{FORMAT}). Update edgelearn."
            )
        missing = {"kind", "status", "config", "started"} - record.keys()
        if missing or not isinstance(record["config"], dict):
            raise ValueError(f"it lacks {', '.join(sorted(missing)) or 'a config'}")
    except OSError as error:
        raise FormatError(f"{path} can't be read: {error.strerror}. Restore it or delete the folder.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is damaged ({error}). Restore it from a backup or delete the folder.") from error
    return record


def _summary(folder: Path) -> RunSummary:
    try:
        run = Run(folder)
        status, rows, record = run.status, run.history(), run.record
        return RunSummary(
            id=folder.name,
            folder=folder,
            status=status,
            started=str(record["started"]),
            kind=str(record["kind"]),
            updated=str(record.get("updated") or ""),
            epochs=rows[-1]["epoch"] if rows else 0,
            device=_dict(record.get("device")),
            results=_dict(record.get("results")),
            last=rows[-1] if rows else {},
        )
    except EdgelearnError as error:
        return RunSummary(folder.name, folder, "damaged", _changed(folder), problem=str(error))


def _changed(folder: Path) -> str:
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat()
    except OSError:
        return ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _normal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as it will be read back, so that a run looks the same now and later."""
    return json.loads(atomic.to_json(record))


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _some(ids: list[str]) -> str:
    shown = ", ".join(ids[-5:])
    return f"{shown} and {len(ids) - 5} more" if len(ids) > 5 else shown
