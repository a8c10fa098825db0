"""Ancestors of nodes in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def ancestors(nodes: Iterable[T], sources: Callable[[T], Iterable[T]]) -> set[T]:
    """`nodes` and everything that they depend on, where `sources(node)` are the direct dependencies of a node."""
    seen = set(nodes)
    waiting = list(seen)
    while waiting:
        new = set(sources(waiting.pop())) - seen
        seen |= new
        waiting += new
    return seen
