"""The run store: a folder of runs."""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic
from edgelearn.display import Displayed, plural
from edgelearn.errors import EdgelearnError, RunError

from . import page
from .compare import Comparison, compare
from .run import (
    CHANGES,
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
from .summary import Runs, summarize

_KIND = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ID = re.compile(r".+-\d{8}-\d{6}-[0-9a-f]{4}")
_TIME = len("20261120-194501-3f2a")  # characters at the end of an id
_UNFINISHED_PREFIX, _DELETED_PREFIX = ".creating-", ".deleting-"
_UNFINISHED_AGE_SECONDS = 3600.0
TRASH = ".deleted"  # runs that can be restored
TRASH_DAYS = 7


class RunStore(Displayed):
    """A folder of runs. A notebook shows it as a table to sort, search, rename, tag, compare, delete and restore.

    Arguments:
    - `root`: the folder (default: EDGELEARN_RUNS of the environment, else `runs` in the git checkout that the working
      folder is in, so that its notebooks and the commands share one store, else `runs` in the working folder).
    """

    def __init__(self, root: str | Path | None = None) -> None:
        # Absolute, because notebooks change the working folder.
        root = root or os.environ.get("EDGELEARN_RUNS") or _checkout(Path.cwd()) / "runs"
        self.root = Path(root).expanduser().absolute()

    @property
    def headline(self) -> str:
        count = len(self._folders())
        return f"of {plural(count, 'run')} in {self.root}"

    def __str__(self) -> str:
        return str(self.list())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        runs = self.list()
        return page.bundle(self.answer, {"runs": True}, runs._repr_html_(), str(runs))

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
        It is gone for good; `discard` keeps it for a while.

        Raises RunError if there is none or more than one, if a process is writing it, or if it can't be removed.
        """
        folder = self._not_running(name)
        hidden = self.root / f"{_DELETED_PREFIX}{secrets.token_hex(8)}"
        try:
            os.rename(folder, hidden)  # at once: a kill leaves no half of a run
            shutil.rmtree(hidden)
        except OSError as error:
            raise RunError(f"{folder} can't be removed: {error.strerror}. Check the folder's permissions.") from error
        return folder.name

    def discard(self, name: str) -> str:
        """Take the run whose id is `name`, or the only one whose id starts so, out of the store, and return its id.
        `restore` brings it back within a week; then a run that is created removes it.

        Raises RunError like `delete`.
        """
        folder = self._not_running(name)
        trash = self.root / TRASH
        try:
            trash.mkdir(exist_ok=True)
            os.rename(folder, trash / folder.name)
            os.utime(trash / folder.name)  # when it was discarded
        except OSError as error:
            raise RunError(f"{folder} can't be moved: {error.strerror}. Check the folder's permissions.") from error
        return folder.name

    def restore(self, name: str) -> str:
        """Bring back the run that was discarded whose id is `name`, or the only one whose id starts so; returns its id.

        Raises RunError if there is none or more than one, or if it can't be moved.
        """
        folder = self._find(name, self.root / TRASH)
        try:
            os.rename(folder, self.root / folder.name)
        except OSError as error:
            raise RunError(f"{folder} can't be moved: {error.strerror}. Check the folder's permissions.") from error
        return folder.name

    def discarded(self) -> Runs:
        """A summary of every run that can be restored, newest first."""
        return self._summaries(self.root / TRASH)

    def _not_running(self, name: str) -> Path:
        folder = self._find(name)
        if is_held(folder / LOCK):
            raise RunError(f"{folder.name} is running: end it first, with Ctrl-C in its terminal.")
        return folder

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request of a page (page.js): {"do": …} and its arguments. Raises EdgelearnError if it can't be."""
        match dict(request):
            case {"do": "list", "newest": int(count)}:
                found = self.newest(count)
                return {"rows": [page.row(each) for each in found], "complete": len(found) < count}
            case {"do": "list"}:
                return {"rows": [page.row(each) for each in self.list()], "complete": True}
            case {"do": "discarded"}:
                return {"rows": [page.row(each) for each in self.discarded()], "complete": True}
            case {"do": "run", "id": str(name)}:
                return {"run": page.run_page(self.open(name))}
            case {"do": "compare", "ids": list(names)}:
                return {"compare": page.comparison_page(self.compare(*names))}
            case {"do": "annotate", "id": str(name), **texts} if texts.keys() <= {"name", "tags", "note"}:
                return self.open(name).annotate(**texts)
            case {"do": "discard" | "restore" as do, "ids": list(names)}:
                return self._each(self.discard if do == "discard" else self.restore, names)
            case {"do": "export", "ids": list(names), "kind": str(kind)}:
                runs = [self.open(name) for name in names]
                name, data = page.exported(runs, compare(runs), kind)
                return {"name": name, "type": page.KINDS[kind][1], "data": base64.b64encode(data).decode()}
        raise RunError(f"A page asked for something unknown: {dict(request)!s:.100}. Load it again.")

    def _each(self, function: Callable[[str], str], names: Sequence[str]) -> dict[str, Any]:
        """Apply a function to each run; those that can't be moved don't hold up the others."""
        done, problems = [], []
        for name in names:
            try:
                done.append(function(name))
            except EdgelearnError as error:
                problems.append(str(error))
        return {"done": done, "problems": problems}

    def find(self, name: str) -> str:
        """The id of the run that `name` is, or that alone starts so. Raises RunError if there is none or more."""
        return self._find(name).name

    def _find(self, name: str, root: Path | None = None) -> Path:
        """The folder of the run whose id is `name`, or of the only one whose id starts so."""
        root = root or self.root
        if _ID.fullmatch(name) and Path(name).name == name and (root / name / RECORD).exists():
            return root / name  # without looking at the others
        ids = [folder.name for folder in self._folders(root)]
        matches = [name] if name in ids else [known for known in ids if name and known.startswith(name)]
        if len(matches) == 1:
            return root / matches[0]
        if matches:
            raise RunError(f"{len(matches)} runs start with {name!r}: {_some(matches)}. Give more of the id.")
        known = f"There are: {_some(ids)}." if ids else "There are none yet; EDGELEARN_RUNS names another folder."
        raise RunError(f"No run in {root} starts with {name!r}. {known}")

    def list(self) -> Runs:
        """A summary of every run, newest first. A damaged one is listed as such."""
        return self._summaries(self.root)

    def newest(self, count: int) -> Runs:
        """A summary of each of the `count` newest runs, by the times in their ids. Reads no more than these."""
        folders = sorted(self._folders(), key=lambda folder: folder.name[-_TIME:], reverse=True)
        return self._summaries(self.root, folders[:count])

    def _summaries(self, root: Path, folders: Sequence[Path] | None = None) -> Runs:
        found = summarize(root, self._folders(root) if folders is None else folders, every=folders is None)
        return Runs(sorted(found, key=lambda s: (s.started, s.id), reverse=True))

    def compare(self, *names: str) -> Comparison:
        """Runs side by side, by their ids or the starts of these. Raises RunError like `open`."""
        return compare([self.open(name) for name in names])

    def newest_unfinished(self, kind: str) -> str:
        """The id of the newest run of `kind` that can be resumed. Raises RunError if there is none."""
        for summary in self.list():
            if summary.kind == kind and summary.status in ("interrupted", "failed"):
                return summary.id
        raise RunError(f"There is no interrupted {kind} run to resume. `edgelearn runs` lists what there is.")

    def _folders(self, root: Path | None = None) -> list[Path]:
        """Folders that are runs; a folder called `runs` may hold others, too."""
        root = root or self.root
        try:
            folders = [entry for entry in root.iterdir() if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"The runs in {root} can't be read: {error.strerror}. Check the folder.") from error
        runs = [folder for folder in folders if _ID.fullmatch(folder.name) or (folder / RECORD).exists()]
        return sorted(runs, key=lambda folder: folder.name)

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
        """Remove folders whose creator or remover was killed, so old that nobody is creating them now, and runs that
        were discarded a week ago."""
        hidden = (*self.root.glob(f"{_UNFINISHED_PREFIX}*"), *self.root.glob(f"{_DELETED_PREFIX}*"))
        ages = dict.fromkeys(hidden, _UNFINISHED_AGE_SECONDS)
        ages |= dict.fromkeys((self.root / TRASH).glob("*"), TRASH_DAYS * 86400.0)
        for folder, age in ages.items():
            try:
                if time.time() - folder.stat().st_mtime > age:
                    shutil.rmtree(folder, ignore_errors=True)
            except FileNotFoundError:
                pass  # its creator renamed it in between


def _checkout(folder: Path) -> Path:
    """The root of the git checkout that `folder` is in, or `folder`."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


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
