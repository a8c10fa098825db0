"""A table of formats, filled when it is first read: the package's own formats take as long to import as the engine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Generic, Protocol, TypeVar

BUILT_IN = "edgelearn.interop.built_in"  # imports the files that add the package's own entries


class Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Table(Generic[Entry]):
    """Entries by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> Entry:
        """Add an entry; it replaces one of the same name, also one of the package's own that isn't imported yet."""
        self._entries[entry.name] = entry
        return entry

    def __iter__(self) -> Iterator[Entry]:
        early = dict(self._entries)
        import_module(BUILT_IN)
        self._entries |= early
        return iter(list(self._entries.values()))
