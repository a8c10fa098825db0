"""A table of formats, filled when it is first read: the package's own formats take as long to import as the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Generic, Protocol, TypeVar

from edgelearn.errors import ExtensionError

BUILT_IN = "edgelearn.interop.built_in"  # imports the files that add the package's own entries


class Named(Protocol):
    """An entry.

    - `name`: what users call it.
    - `function`: what it reads or writes files with; it tells one entry from another of the same name.
    """

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Callable: ...


Entry = TypeVar("Entry", bound=Named)


class Table(Generic[Entry]):
    """Entries by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> Entry:
        """Add an entry; one that isn't the package's own is found before those that are. An entry with the same
        function takes the place of itself. Raises ExtensionError if another one has the name."""
        own = _origin(entry)
        is_foreign = not own.startswith("edgelearn.")
        if is_foreign:
            import_module(BUILT_IN)
        known = _origin(self._entries.get(entry.name, entry))
        if own != known:
            raise ExtensionError(
                f"{own} can't be the format '{entry.name}': {known} is it already. Give yours another name; where "
                f"suffixes are the same, yours is found first."
            )
        self._entries.pop(entry.name, None)
        self._entries = {entry.name: entry} | self._entries if is_foreign else self._entries | {entry.name: entry}
        return entry

    def __iter__(self) -> Iterator[Entry]:
        import_module(BUILT_IN)
        return iter(list(self._entries.values()))


def _origin(entry: Named) -> str:
    """Module and name of an entry's function."""
    function = entry.function
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
