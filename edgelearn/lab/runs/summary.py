"""Summaries of runs, a line each; they are kept, so that a list of many runs reads only what has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, SupportsIndex, overload

from edgelearn import atomic
from edgelearn.display import MB, Displayed, plural
from edgelearn.errors import EdgelearnError, RunError
from edgelearn.tables import WIDTH, Table

from .notes import NOTES, read_notes, read_progress
from .results import ABSENT, headline
from .run import HISTORY, LOCK, RECORD, Run, is_held

INDEX = ".index.json"  # in the store's folder
INDEX_FORMAT = "edgelearn index 1"
_WORTH_KEEPING = 50  # summaries that were made anew: then the index is written
_SHOWN = 20  # rows of a notebook's table

Key = list[list[int]]  # inode, time of change and size of each file that a summary is made of


@dataclass(frozen=True, repr=False)
class RunSummary(Displayed):
    """A line of the list of runs.

    Arguments:
    - `id`, `folder`: of the run.
    - `status`: "running", "finished", "failed", "interrupted" or "damaged".
    - `started`, `updated`: times as texts.
    - `kind`: of the experiment, such as "flowers".
    - `epochs`: finished ones.
    - `device`, `results`, `config`: as the run records them.
    - `last`: the newest line of its history.
    - `problem`: why a damaged run can't be read, else None.
    - `bytes`: of its files on disk.
    - `name`, `tags`, `note`: what a reader wrote, see `Run.annotate`.
    - `progress`: how far a running one is: phase, done, total, and seconds left; else None.
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
    config: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    tags: list[str] = field(default_factory=list)
    note: str = ""
    progress: dict[str, Any] | None = None

    @property
    def result(self) -> str:
        """The main result as a text: the accuracy, else the loss, else another figure."""
        return headline(self.results, self.last)

    @property
    def memory(self) -> int | None:
        """Bytes of device memory as planned; None if the record has none."""
        planned = _dict(self.results.get("memory")).get("planned")
        return planned if isinstance(planned, int) else None

    @property
    def headline(self) -> str:
        result = f", {self.result}" if self.result != ABSENT else ""
        return f"{self.name or self.id}: {self.status}{result}"

    def _repr_html_(self) -> str:
        return runs_table([self]).to_html()


class Runs(list[RunSummary]):
    """Summaries of runs, newest first: a list that shows itself as a table."""

    def __repr__(self) -> str:
        if not self:
            return "No runs yet."
        return f"<{plural(len(self), 'run')}, the newest {self[0].id}>"

    def __str__(self) -> str:
        return list_table(self[:_SHOWN]) + self._more

    @property
    def _more(self) -> str:
        return f"The newest {_SHOWN} of {len(self)} runs.\n" if len(self) > _SHOWN else ""

    @overload
    def __getitem__(self, place: SupportsIndex) -> RunSummary: ...

    @overload
    def __getitem__(self, place: slice) -> Runs: ...

    def __getitem__(self, place: SupportsIndex | slice) -> RunSummary | Runs:
        found = super().__getitem__(place)
        return Runs(found) if isinstance(found, list) else found

    @property
    def ids(self) -> list[str]:
        """The ids, such as `store.compare` takes."""
        return [each.id for each in self]

    def where(self, **wanted: Any) -> Runs:
        """The runs of which everything is as given: an entry of the summary, such as `status="finished"`, a setting,
        such as `epochs=3`, or a tag, as `tags="baseline"`."""
        return Runs(each for each in self if all(_matches(each, name, value) for name, value in wanted.items()))

    def table(self) -> Table:
        """The runs as a table."""
        return runs_table(self)

    def to_csv(self) -> str:
        """The table as comma-separated values."""
        return self.table().to_csv()

    def to_latex(self) -> str:
        """The table in LaTeX, for the package booktabs."""
        return self.table().to_latex()

    def _repr_html_(self) -> str:
        if not self:
            return "<p>No runs yet.</p>"
        return runs_table(self[:_SHOWN]).to_html() + (f"<p>{self._more}</p>" if self._more else "")


def _matches(summary: RunSummary, name: str, wanted: Any) -> bool:
    if name == "tags":
        return wanted in summary.tags if isinstance(wanted, str) else set(wanted) <= set(summary.tags)
    if name in summary.config:
        return summary.config[name] == wanted
    return getattr(summary, name, None) == wanted


def runs_table(summaries: Sequence[RunSummary]) -> Table:
    """The list of runs as a table, with MB of device memory as planned; faults of damaged ones are its notes, and names
    a column if there are any."""
    named = any(each.name for each in summaries)
    rows = [
        (s.id, *([s.name] if named else []), s.status, s.started[:16].replace("T", " "), s.epochs, s.result,
         ABSENT if s.memory is None else f"{s.memory / MB:,.1f}", s.device.get("name", ABSENT))
        for s in summaries
    ]  # fmt: skip
    problems = [f"{s.id}: {s.problem}" for s in summaries if s.problem]
    names = ("name",) if named else ()
    header = ("run", *names, "status", "started (UTC)", "epochs", "result", "MB", "device")
    return Table(header, rows, notes=problems)


def list_table(summaries: Sequence[RunSummary], width: int = WIDTH) -> str:
    """The list of runs as plain text, and the faults of damaged ones below it."""
    return runs_table(summaries).to_text(width) if summaries else "No runs yet."


# -- made once, and kept -----------------------------------------------------------------------------------------------


_known: dict[Path, dict[str, tuple[Key, RunSummary]]] = {}  # by store, by folder


def summarize(root: Path, folders: Iterable[Path], every: bool = True) -> list[RunSummary]:
    """A summary of each run in `folders`, which lie in `root`. A run whose files haven't changed isn't read again: its
    summary is in memory, or in the file INDEX of the store. `every`: there are no other runs in `root`."""
    known = _known[root] if root in _known else _read_index(root)
    kept: dict[str, tuple[Key, RunSummary]] = {}
    found, made = [], 0
    for folder in folders:
        held = is_held(folder / LOCK)  # first: a run that ends in between has its final record by then
        key = _key(folder)
        entry = known.get(folder.name)
        if entry is None or entry[0] != key:
            entry, made = (key, _summary(folder)), made + 1
        kept[folder.name] = entry
        found.append(_as_of_now(entry[1], held))
    _known[root] = kept if every else known | kept
    if made >= _WORTH_KEEPING:
        _write_index(root, _known[root])
    return found


def _as_of_now(summary: RunSummary, held: bool) -> RunSummary:
    """The summary of a run whose record says that it is running: its writer may have gone."""
    if summary.status != "running":
        return summary
    return replace(summary, progress=read_progress(summary.folder)) if held else replace(summary, status="interrupted")


def _key(folder: Path) -> Key:
    key = []
    for path in (folder, folder / RECORD, folder / HISTORY, folder / NOTES):
        try:
            found = path.stat()
            key.append([found.st_ino, found.st_mtime_ns, found.st_size])
        except OSError:
            key.append([])
    return key


def _summary(folder: Path) -> RunSummary:
    """The summary of a run as its record has it."""
    try:
        run = Run(folder)
        rows, record, notes = run.history(), run.record, read_notes(folder)
        return RunSummary(
            id=folder.name,
            folder=folder,
            status=record["status"],
            started=str(record["started"]),
            kind=str(record["kind"]),
            updated=str(record.get("updated") or ""),
            epochs=rows[-1]["epoch"] if rows else 0,
            device=_dict(record.get("device")),
            results=_dict(record.get("results")),
            last=rows[-1] if rows else {},
            bytes=_size(folder),
            config=_dict(record.get("config")),
            **notes,
        )
    except EdgelearnError as error:
        return RunSummary(folder.name, folder, "damaged", _changed(folder), problem=str(error), bytes=_size(folder))


def _size(folder: str | Path) -> int:
    """Bytes of a folder's files; those that another process removes meanwhile don't count."""
    found = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found += _size(entry.path) if entry.is_dir() else entry.stat().st_size
    return found


def _changed(folder: Path) -> str:
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat()
    except OSError:
        return ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_TYPES = {each.name: str(each.type) for each in fields(RunSummary)}
_KINDS: dict[str, type] = {"str": str, "int": int, "list[str]": list, "dict[str, Any]": dict}


def _read_index(root: Path) -> dict[str, tuple[Key, RunSummary]]:
    """Read the store's index. One that is damaged, or of another edgelearn, counts for nothing: it is made anew."""
    try:
        index = json.loads((root / INDEX).read_bytes())
        if index["format"] != INDEX_FORMAT:
            return {}
        return {name: (key, _from_index(root / name, entry)) for name, (key, entry) in index["runs"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _from_index(folder: Path, entry: Mapping[str, Any]) -> RunSummary:
    """Raises TypeError for an entry that is none of a summary's, or of another type."""
    for name, value in entry.items():
        if not isinstance(value, _KINDS.get(_TYPES[name], object)):
            raise TypeError(name)
    return RunSummary(id=folder.name, folder=folder, **entry)


def _write_index(root: Path, kept: Mapping[str, tuple[Key, RunSummary]]) -> None:
    """Keep summaries for the next process. A store that can't be written has no index."""
    runs = {
        name: (key, {entry: value for entry, value in vars(summary).items() if entry not in ("id", "folder")})
        for name, (key, summary) in kept.items()
    }
    with suppress(RunError):
        atomic.write_bytes(root / INDEX, atomic.to_json({"format": INDEX_FORMAT, "runs": runs}).encode())
