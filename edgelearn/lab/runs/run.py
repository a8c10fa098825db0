"""A run: configuration, environment, history, checkpoints and results of one training. It is a folder:

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

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgelearn import atomic, records
from edgelearn.errors import FormatError, RunError

from . import checkpoint
from .environment import environment
from .lock import Lock, is_held
from .record import RECORD, Row, normal, normal_row, read_record

HISTORY, LOCK = "history.jsonl", "lock"
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"
# Fields of the record that only the run itself writes.
FIXED = {"format", "id", "kind", "config", "environment", "status", "started", "updated", "finished", "resumed"}
_log = logging.getLogger(__name__)


class Run:
    """One run: writable from `RunStore.create`, readable from `RunStore.open`, writable again after `resume`.

    As a context manager it marks the run as failed on an exception and always releases the lock:

    >>> with store.create("flowers", config) as run:
    ...     run.append_epoch({"epoch": 1, "loss": 0.7})
    ...     run.finish({"correct": 670, "total": 736})

    A run that is closed without `finish` or `fail`, or whose process is gone, is "interrupted".

    Arguments:
    - `folder`: of the run.
    - `lock`: that the writer holds (default: a new one, not held).
    """

    def __init__(self, folder: Path, lock: Lock | None = None) -> None:
        self.folder = folder
        self._lock = lock or Lock(folder / LOCK)
        self._writing = threading.RLock()
        self.record: dict[str, Any] = read_record(folder)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, fixed when the run was created."""
        return self.record["config"]

    @property
    def status(self) -> str:
        """ "running", "interrupted", "finished" or "failed", as of now."""
        if self._lock.held:
            return self.record["status"]
        # Check the lock first: a run that ends in between has its final record by then.
        running = is_held(self.folder / LOCK)
        self.record = read_record(self.folder)
        if self.record["status"] == "running" and not running:
            return "interrupted"
        return self.record["status"]

    def resume(self) -> Run:
        """Take the run over to continue it, and return it.

        Raises RunError if it is finished or if another process is writing it.
        """
        with self._writing:
            if self._lock.held:
                return self
            self._lock.acquire()
            try:
                self.record = read_record(self.folder)
                if self.record["status"] == "finished":
                    raise RunError(f"Run {self.id} is finished: there is nothing to resume. Start a new run.")
                atomic.remove_leftovers(self.folder)
                resumption = {"time": now(), "environment": environment()}
                self._write(status="running", error=None, resumed=[*self.record.get("resumed", []), resumption])
            except BaseException:
                self._lock.release()
                raise
        return self

    def update(self, **fields: Any) -> None:
        """Set fields of the record, such as device, data, weights or results, and save it.

        Raises RunError for the fields that the run writes itself, or if it is not open for writing.
        """
        if fixed := sorted(FIXED & fields.keys()):
            raise RunError(f"The run writes {', '.join(fixed)} itself; update other fields, such as results.")
        self._write(**fields)

    def append_epoch(self, row: Mapping[str, Any]) -> None:
        """Add a row to the history; `row["epoch"]` is its number (an integer).

        An epoch that is repeated after a resume replaces its old row and those after it.
        """
        epoch = row.get("epoch")
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer):
            raise RunError(f"A history row needs its number as an integer 'epoch', but has {epoch!r}.")
        with self._writing:
            self._require_lock()
            atomic.append_line(self.folder / HISTORY, atomic.to_json(normal_row(row)))
            self._write()

    def history(self) -> list[dict[str, Any]]:
        """The rows so far, epochs ascending. Raises FormatError if a complete line is damaged."""
        path = self.folder / HISTORY
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(atomic.read_lines(path), start=1):
            try:
                row = records.parse(line, Row)
            except records.RecordError as error:
                raise FormatError(
                    f"{path}, line {number} is damaged ({error}). Restore the file or delete that line."
                ) from error
            while rows and rows[-1]["epoch"] >= row["epoch"]:
                rows.pop()
            rows.append(dict(row))
        return rows

    def save_checkpoint(self, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Save tensors by name (any shape; boolean, integer or float) and a state that JSON can hold.

        The last checkpoint becomes the previous one. Raises RunError if it can't be written; both checkpoints on the
        disk then stay as they are.
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
                remedy = f"to continue from {previous.name}" if previous.exists() else "and start a new run"
                raise FormatError(f"{error} Restore it from a backup, or delete it {remedy}.") from error
        if previous.exists():
            _log.warning("%s is missing; going on from %s.", current, previous.name)
            return checkpoint.read(previous)
        raise RunError(f"Run {self.id} has no checkpoint in {self.folder}: it can't be continued. Start a new run.")

    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint to load."""
        return (self.folder / CHECKPOINT).exists() or (self.folder / PREVIOUS).exists()

    def finish(self, results: Mapping[str, Any]) -> None:
        """Save the results, mark the run as finished and close it."""
        self._write(status="finished", results=dict(results), finished=now())
        self.close()

    def fail(self, error: BaseException | str) -> None:
        """Save the error, mark the run as failed and close it. A failed run can be resumed."""
        kind = "" if isinstance(error, str) else type(error).__name__
        self._write(status="failed", error={"type": kind, "message": str(error)}, finished=now())
        self.close()

    def close(self) -> None:
        """Release the lock, so that any process may resume the run."""
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
            assert error is not None
            error.add_note(f"The run could not be marked as failed: {unsaved}")
        finally:
            self.close()

    def _write(self, **fields: Any) -> None:
        with self._writing:
            self._require_lock()
            record = normal(self.record | fields | {"updated": now()})
            atomic.write_json(self.folder / RECORD, record)
            self.record = record

    def _require_lock(self) -> None:
        if not self._lock.held:
            raise RunError(f"Run {self.id} is open for reading only. Call resume() first to continue it.")


def now() -> str:
    return datetime.now(UTC).isoformat()
