"""The run store: a folder of runs."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic
from edgelearn.errors import EdgelearnError, RunError

from .run import (
    CHECKPOINT,
    FIXED,
    FORMAT,
    HISTORY,
    LOCK,
    RECORD,
    Lock,
    Run,
    changes,
    encode_checkpoint,
    environment,
    is_held,
    normal,
)

CHANGES = "changes.diff"  # of a checkout with local changes: what they were
_KIND = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ID = re.compile(r".+-\d{8}-\d{6}-[0-9a-f]{4}")
_UNFINISHED_PREFIX, _DELETED_PREFIX = ".creating-", ".deleting-"
_UNFINISHED_AGE_SECONDS = 3600.0


@dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs.

    Arguments:
    - `id`, `folder`: of the run.
    - `status`: "running", "finished", "failed", "interrupted" or "damaged".
    - `started`, `updated`: times as texts.
    - `kind`: of the experiment, such as "flowers".
    - `epochs`: finished ones.
    - `device`, `results`: as the run records them.
    - `last`: the newest line of its history.
    - `problem`: why a damaged run can't be read, else None.
    - `bytes`: of its files.
    """

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
    bytes: int = 0


class RunStore:
    """A folder of runs.

    Arguments:
    - `root`: the folder (default: EDGELEARN_RUNS of the environment, else `runs` in the git checkout that the working
      folder is in, so that its notebooks and the commands share one store, else `runs` in the working folder).
    """

    def __init__(self, root: str | Path | None = None) -> None:
        # Absolute, because notebooks change the working folder.
        root = root or os.environ.get("EDGELEARN_RUNS") or _checkout(Path.cwd()) / "runs"
        self.root = Path(root).expanduser().absolute()

    def create(self, kind: str, config: Mapping[str, Any], **fields: Any) -> Run:
        """A new run, running and locked; `fields` (device, data, weights …) go into its record.

        Its id is the kind, the time (UTC) and four random digits, as in flowers-20261120-194501-3f2a.
        The seed is taken from the config. Raises RunError for an unusable kind or config or a folder that
        can't be written.
        """
        if not _KIND.fullmatch(kind):
            raise RunError(f"The kind {kind!r} can't name a folder: use lower-case letters, digits, '-', '_'.")
        if fixed := sorted(FIXED & fields.keys()):
            raise RunError(f"The run writes {', '.join(fixed)} itself; give other fields, such as device.")
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
        normal(record)  # fails before anything is on the disk
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
        return Run(self._find(name))

    def delete(self, name: str) -> str:
        """Delete the run whose id is `name`, or the only one whose id starts so, and return its id; a damaged one, too.

        Raises RunError if there is none or more than one, if a process is writing it, or if it can't be removed.
        """
        folder = self._find(name)
        if is_held(folder / LOCK):
            raise RunError(f"{folder.name} is running: end it first, with Ctrl-C in its terminal.")
        hidden = self.root / f"{_DELETED_PREFIX}{secrets.token_hex(8)}"
        try:
            os.rename(folder, hidden)  # at once: a kill leaves no half of a run
            shutil.rmtree(hidden)
        except OSError as error:
            raise RunError(f"{folder} can't be removed: {error.strerror}. Check the folder's permissions.") from error
        return folder.name

    def find(self, name: str) -> str:
        """The id of the run that `name` is, or that alone starts so. Raises RunError if there is none or more."""
        return self._find(name).name

    def _find(self, name: str) -> Path:
        """The folder of the run whose id is `name`, or of the only one whose id starts so."""
        ids = [folder.name for folder in self._folders()]
        matches = [name] if name in ids else [known for known in ids if name and known.startswith(name)]
        if len(matches) == 1:
            return self.root / matches[0]
        if matches:
            raise RunError(f"{len(matches)} runs start with {name!r}: {_some(matches)}. Give more of the id.")
        known = f"There are: {_some(ids)}." if ids else "There are none yet; EDGELEARN_RUNS names another folder."
        raise RunError(f"No run in {self.root} starts with {name!r}. {known}")

    def list(self) -> list[RunSummary]:
        """A summary of every run, newest first. A damaged one is listed as such."""
        return sorted(map(_summary, self._folders()), key=lambda s: (s.started, s.id), reverse=True)

    def newest_unfinished(self, kind: str) -> str:
        """The id of the newest run of `kind` that can be resumed. Raises RunError if there is none."""
        for summary in self.list():
            if summary.kind == kind and summary.status in ("interrupted", "failed"):
                return summary.id
        raise RunError(f"There is no interrupted {kind} run to resume. `edgelearn runs` lists what there is.")

    def _folders(self) -> list[Path]:
        """Folders that are runs; a folder called `runs` may hold others, too."""
        try:
            folders = [entry for entry in self.root.iterdir() if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"The runs in {self.root} can't be read: {error.strerror}. Check the folder.") from error
        return sorted(folder for folder in folders if _ID.fullmatch(folder.name) or (folder / RECORD).exists())

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
            if text := changes(record["environment"]["commit"]):
                atomic.write_bytes(hidden / CHANGES, text.encode(errors="surrogateescape"))
            # If another process took the name just now, the rename fails: a run's folder is never empty.
            os.rename(hidden, folder)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        lock.path = folder / LOCK
        atomic.sync_folder(self.root)
        return Run(folder, lock)

    def _remove_unfinished(self) -> None:
        """Remove folders whose creator or remover was killed: they are so old that nobody is creating them now."""
        for folder in (*self.root.glob(f"{_UNFINISHED_PREFIX}*"), *self.root.glob(f"{_DELETED_PREFIX}*")):
            try:
                if time.time() - folder.stat().st_mtime > _UNFINISHED_AGE_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
            except FileNotFoundError:
                pass  # its creator renamed it in between


def _checkout(folder: Path) -> Path:
    """The root of the git checkout that `folder` is in, or `folder`."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


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
            bytes=_size(folder),
        )
    except EdgelearnError as error:
        return RunSummary(folder.name, folder, "damaged", _changed(folder), problem=str(error), bytes=_size(folder))


def _size(folder: Path) -> int:
    """Bytes of a folder's files; those that another process removes meanwhile don't count."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.stat().st_size * path.is_file()
    return found


def _changed(folder: Path) -> str:
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat()
    except OSError:
        return ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _some(ids: list[str]) -> str:
    shown = ", ".join(ids[-5:])
    return f"{shown} and {len(ids) - 5} more" if len(ids) > 5 else shown


def rescue(
    run: Run, rows: Sequence[Mapping[str, Any]], tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]
) -> Path | None:
    """Keep what a training has in memory when its run folder can't be written any more: write a copy of the run to a
    new store in the folder of temporary files, or else in the home folder.

    Arguments:
    - `run`: its record is taken from memory.
    - `rows`: the history.
    - `tensors`, `state`: as in Run.save_checkpoint.

    Returns the folder of the copy, which can be resumed, or None if it can't be written anywhere.
    """
    for parent in (tempfile.gettempdir, Path.home):
        try:
            folder = Path(tempfile.mkdtemp(prefix="edgelearn-runs-", dir=parent())) / run.id
            folder.mkdir()
            atomic.write_json(folder / RECORD, run.record | {"status": "failed"})
            for row in rows:
                atomic.append_line(folder / HISTORY, atomic.to_json(row))
            atomic.write_bytes(folder / CHECKPOINT, encode_checkpoint(tensors, state))
            return folder
        except (OSError, RuntimeError, RunError):  # RuntimeError: there is no home folder
            continue
    return None
