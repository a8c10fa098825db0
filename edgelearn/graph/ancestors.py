"""What something is made of, going back through a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def ancestors(these: Iterable[T], sources: Callable[[T], Iterable[T]]) -> set[T]:
    """These, their `sources`, what those are made of in turn, and so on."""
    seen = set(these)
    waiting = list(seen)
    while waiting:
        new = set(sources(waiting.pop())) - seen
        seen |= new
        waiting += new
    return seen
