"""A run: configuration, environment, history, checkpoints and results of one training. It is a folder:

    run.json                            the record: config, seed, environment, device, status, results
    history.jsonl                       a row per epoch
    checkpoint.safetensors              where a resumed run goes on
    checkpoint-previous.safetensors     the one before, for a kill between two renames
    lock                                held while a process writes the run
    notes.json, progress.json           what its reader writes, and how far it is (notes.py)

Names that comparison and figures look for are those of `Results` and `Row` (results.py), all optional.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypedDict

import numpy as np
import safetensors
import safetensors.numpy
from filelock import lock_descriptor

from edgelearn import atomic, records
from edgelearn.display import Displayed
from edgelearn.errors import FormatError, RunError
from edgelearn.tables import Table

from . import figures
from .notes import ProgressEntry, read_notes, write_notes, write_progress
from .results import ABSENT, INTERVAL, Results, Row, flat_settings, headline, named_result, outcome, setting_text

RECORD, HISTORY, LOCK = "run.json", "history.jsonl", "lock"
CHANGES = "changes.diff"  # of a checkout with local changes: what they were
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"
FORMAT, CHECKPOINT_FORMAT = 1, "edgelearn checkpoint 1"
# Fields of the record that only the run itself writes.
FIXED = {"format", "id", "kind", "config", "environment", "status", "started", "updated", "finished", "resumed"}
_MOST_CHANGES = 10**6  # characters
_PACKAGE = Path(__file__).resolve().parents[2]
_DIGEST_KEY, _NO_DIGEST = b'"sha256":"', b"0" * 64
# `is_held` takes the lock for an instant; whoever meets it tries again.
_ATTEMPTS, _READER_ATTEMPTS, _PAUSE_SECONDS = 10, 3, 0.01
_log = logging.getLogger(__name__)


class DeviceEntry(TypedDict, total=False):
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
    device: DeviceEntry | None
    results: Results | None
    before: dict[str, float | None]
    seconds: float
    resumed: list[dict[str, Any]]
    error: dict[str, Any] | None


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


def normal(value: Mapping[str, Any], kind: Any = Record) -> dict[str, Any]:
    """A record, or a Row of the history, as it will be read, so that a run looks the same now and later. Raises
    RunError for entries that can't be saved."""
    try:
        return records.parse(atomic.to_json(value), kind)
    except records.RecordError as error:
        raise RunError(
            f"A run can't keep this: {error}. Store it under another name, or as the type expected."
        ) from None


def environment() -> dict[str, str | None]:
    """Versions and platform; `commit` is None outside a checkout, and ends in `-dirty` with local changes."""
    try:
        version = importlib.metadata.version("edgelearn")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {
        "edgelearn": version, "python": platform.python_version(), "numpy": np.__version__,
        "platform": platform.platform(), "machine": platform.machine(), "commit": commit(_PACKAGE),
    }  # fmt: skip


def commit(folder: Path) -> str | None:
    """The commit of the checkout that tracks the files of `folder`, or None if none does."""
    # A virtual environment may lie inside somebody else's checkout, so the files must be tracked.
    if not _git(folder, "ls-files", "--", "."):
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def changes(commit: str | None, folder: Path = _PACKAGE) -> str:
    """Changes of the checkout of `folder` since its commit, as `git apply` reads them, and the names of new files;
    empty if `commit`, as the environment has it, says that there are none."""
    if not (commit or "").endswith("-dirty"):
        return ""
    new = _git(folder, "ls-files", "--others", "--exclude-standard") or ""
    difference = _git(folder, "diff", "--binary", "HEAD") or ""
    if len(difference) > _MOST_CHANGES:
        difference = f"# {len(difference):,} characters, too many to keep: commit them.\n"
    return "".join(f"# new file: {name}\n" for name in new.splitlines()) + difference + "\n"


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        # Files may have any bytes.
        done = subprocess.run(command, capture_output=True, errors="surrogateescape", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip("\n") or None  # a patch may end in a context line of one space


def encode_checkpoint(tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> bytes:
    """A checkpoint as the bytes of one safetensors file (https://huggingface.co/docs/safetensors: an 8-byte header
    length, a JSON header, the data): tensors, a JSON state, and a SHA-256 of it all. The digest stands in the file's
    metadata and is taken over every byte of the file with the digest's own 64 characters set to zero, so a change
    anywhere, header included, is noticed.

    Raises RunError for a data type or a state that can't be stored.
    """
    arrays = {name: _storable(name, array) for name, array in tensors.items()}
    metadata = {"format": CHECKPOINT_FORMAT, "state": atomic.to_json(state), "sha256": _NO_DIGEST.decode()}
    data = safetensors.numpy.save(arrays, metadata=metadata)
    start = data.index(_DIGEST_KEY + _NO_DIGEST) + len(_DIGEST_KEY)
    return data[:start] + _digest(data, start) + data[start + len(_NO_DIGEST) :]


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and state of the checkpoint at `path`.

    Raises FormatError if the file can't be read, is not a checkpoint, or was changed since it was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path} can't be read: {error.strerror}. Restore it from a backup.") from error
    try:
        header_end = 8 + int.from_bytes(data[:8], "little")
        metadata = records.parse(data[8:header_end], dict)["__metadata__"]
        if metadata["format"] != CHECKPOINT_FORMAT:
            raise ValueError(f"its format is {metadata['format']!r}, not {CHECKPOINT_FORMAT!r}")
        digest = metadata["sha256"].encode()
        start = data.index(_DIGEST_KEY + digest, 8, header_end) + len(_DIGEST_KEY)
        if _digest(data, start) != digest:
            raise ValueError("its contents don't match its SHA-256")
        state = records.parse(metadata["state"], dict)
        tensors = safetensors.numpy.load(data)
    except (ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        foreign = isinstance(error, records.RecordError | KeyError | TypeError | AttributeError)
        reason = "its header is not that of a checkpoint" if foreign else str(error)
        raise FormatError(f"The checkpoint {path} ({len(data):,} bytes) is corrupt: {reason}.") from error
    return {name: np.require(array, requirements="W") for name, array in tensors.items()}, state


def _digest(data: bytes, start: int) -> bytes:
    """The digest of a file, whose own stands at `start`."""
    hasher = hashlib.sha256(data[:start])
    hasher.update(_NO_DIGEST)
    hasher.update(memoryview(data)[start + len(_NO_DIGEST) :])
    return hasher.hexdigest().encode()


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")  # safetensors takes an array's memory as it lies
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise RunError(
            f"Tensor {name!r} has data type {array.dtype}, which a checkpoint can't hold. "
            "Convert it to a boolean, integer or floating-point type of at most 64 bits."
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class Lock:
    """An exclusive lock on the file at `path`, in which its holder stands: one writer per run, one training per device.

    The lock is tied to an open file, so the kernel releases it when the process ends, however it ends: no stale lock
    outlives a kill, a reboot, or a process number that was given out again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _locks.add(self)

    @property
    def held(self) -> bool:
        """True if this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock of a run; raises RunError naming the holder if another has it, or if locking fails."""
        if self.held or (other := self.take()) is None:
            return
        here = " (this one)" if other.get("pid") == os.getpid() else ""
        holder = f"process {other['pid']}{here} on {other['host']}" if "pid" in other else "another process"
        raise RunError(
            f"The run in {self.path.parent} is being written by {holder}. "
            "Wait until it ends or stop it, then try again."
        )

    def take(self) -> dict[str, Any] | None:
        """Take the lock and return None, or return what `note` wrote last if another has it: empty if that can't be
        read. Raises RunError if locking fails."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not self._locked(descriptor):
                    found = _holder(descriptor)
                    os.close(descriptor)
                    return found
                self._descriptor = descriptor
                self.note()
            except BaseException:
                self._descriptor = None
                os.close(descriptor)
                raise
        except OSError as error:
            raise atomic.explain(error, self.path, 0) from error
        return None

    def note(self, **about: str) -> None:
        """Write who holds this lock: its process and host, and `about`."""
        assert self._descriptor is not None
        holder = {"pid": os.getpid(), "host": socket.gethostname(), **about}
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, json.dumps(holder).encode())

    def release(self) -> None:
        """Release the lock by closing the file; unlocking would also release the lock of a forked parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()

    def _locked(self, descriptor: int) -> bool:
        try:
            return _locked(descriptor, _ATTEMPTS)
        except OSError as error:
            raise RunError(
                f"{self.path} can't be locked ({error.strerror}): this file system has no locks. "
                "Keep runs on another one (set EDGELEARN_RUNS)."
            ) from error


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        found = records.parse(os.read(descriptor, 4096), dict)
        return found if {"pid", "host"} <= found.keys() else {}
    except (OSError, ValueError):  # Windows locks the first byte against reading, too
        return {}


def is_held(path: Path) -> bool:
    """True if any process holds the lock at `path`. Changes nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _locked(descriptor, _READER_ATTEMPTS)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _locked(descriptor: int, attempts: int) -> bool:
    """True once the file is locked; False if another holds it at every attempt."""
    for attempt in range(attempts):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        if lock_descriptor(descriptor, blocking=False):
            return True
    return False


def _plain_rows(lines: Sequence[str]) -> list[dict[str, Any]] | None:
    """Rows of an epoch and numbers, as almost all are, read at once; None if one has anything else, or is none."""
    try:
        rows = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):
        return None
    return rows if len(rows) == len(lines) and all(map(_is_plain, rows)) else None


def _is_plain(row: Any) -> bool:
    if type(row) is not dict or type(epoch := row.get("epoch")) is not int or abs(epoch) > records.LARGEST_INT:
        return False
    return [*map(type, row.values())].count(float) == len(row) - 1


# A forked child shares the parent's open file and would keep its lock alive after the parent's death.
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


class Run(Displayed):
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

    @property
    def headline(self) -> str:
        rows = self.history()
        result = headline(self.record.get("results") or {}, rows[-1] if rows else {})
        return f"{self.id}: {self.status}" + (f", {result}" if result != ABSENT else "")

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except (FormatError, RunError):  # its folder is damaged, or has gone
            return f"<Run {self.id}>"

    def _repr_html_(self) -> str:
        notes, rows = self.notes, self.history()
        found = {"status": self.status} | outcome(self.record.get("results") or {}, rows[-1] if rows else {})
        results = [named_result(name, value) for name, value in found.items() if value is not None and name != INTERVAL]
        settings = [(key, setting_text(value)) for key, value in flat_settings(self.config)]
        title = " · ".join(filter(None, (notes["name"], self.id, ", ".join(notes["tags"]), notes["note"])))
        parts = [Table(("", ""), results, title).to_html(), Table(("setting", "value"), settings).to_html()]
        if rows:
            parts.insert(1, figures.to_img(figures.plot_learning_curves(rows)))
        return "".join(parts)

    @property
    def notes(self) -> dict[str, Any]:
        """Its name, tags and note, as `annotate` wrote them. Raises FormatError if their file is damaged."""
        return read_notes(self.folder)

    @property
    def claims(self) -> Table:
        """The claims that were held against its results, passed, failed or not measured; none before its end."""
        words = {True: "passed", False: "failed", None: "not measured"}
        found = self.record.get("claims") or []
        rows = [(words.get(each.get("passed"), ""), each.get("claim"), each.get("measured")) for each in found]
        return Table(("", "claim", "measured"), rows)

    def annotate(
        self, name: str | None = None, tags: Iterable[str] | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Name the run, tag it, write a note; also while another process writes it. What isn't given stays.

        Returns name, tags and note. Raises RunError if a text is too long or can't be written.
        """
        return write_notes(self.folder, name, tags, note)

    @property
    def writer(self) -> dict[str, Any] | None:
        """The process that writes the run, as {"pid", "host"}; None if none does, or if it can't be told."""
        if not is_held(self.folder / LOCK) and not self._lock.held:
            return None
        try:
            return records.parse((self.folder / LOCK).read_bytes()[:4096], dict)
        except (OSError, records.RecordError):
            return None

    def report(self, progress: ProgressEntry) -> None:
        """Say how far the run is, for lists that show it meanwhile. Cheap: nothing is flushed to the disk."""
        write_progress(self.folder, progress)

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
            atomic.append_line(self.folder / HISTORY, atomic.to_json(normal(row, Row)))
            self._write()

    def history(self) -> list[dict[str, Any]]:
        """The rows so far, epochs ascending. Raises FormatError if a complete line is damaged."""
        lines = atomic.read_lines(self.folder / HISTORY)
        rows: list[dict[str, Any]] = []
        for row in _plain_rows(lines) or self._checked_rows(lines):
            while rows and rows[-1]["epoch"] >= row["epoch"]:
                rows.pop()
            rows.append(row)
        return rows

    def _checked_rows(self, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, start=1):
            try:
                yield dict(records.parse(line, Row))
            except records.RecordError as error:
                path = self.folder / HISTORY
                raise FormatError(
                    f"{path}, line {number} is damaged ({error}). Restore the file or delete that line."
                ) from error

    def save_checkpoint(self, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Save tensors by name (any shape; boolean, integer or float) and a state that JSON can hold.

        The last checkpoint becomes the previous one. Raises RunError if it can't be written; both checkpoints on the
        disk then stay as they are.
        """
        with self._writing:
            self._require_lock()
            data = encode_checkpoint(tensors, state)
            atomic.write_bytes(self.folder / CHECKPOINT, data, previous=self.folder / PREVIOUS)

    def load_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Tensors and state of the last checkpoint.

        If a kill left no current checkpoint, the previous one is read, with a warning in the log.
        Raises RunError if there is none, FormatError if it is corrupt.
        """
        current, previous = self.folder / CHECKPOINT, self.folder / PREVIOUS
        if current.exists():
            try:
                return read_checkpoint(current)
            except FormatError as error:
                remedy = f"to continue from {previous.name}" if previous.exists() else "and start a new run"
                raise FormatError(f"{error} Restore it from a backup, or delete it {remedy}.") from error
        if previous.exists():
            _log.warning("%s is missing; going on from %s.", current, previous.name)
            return read_checkpoint(previous)
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
