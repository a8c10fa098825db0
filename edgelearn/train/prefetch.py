"""Prepare the next item on a thread while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def ahead(keys: Iterable[Key], make: Callable[[Key], Value]) -> Generator[tuple[Key, Value]]:
    """Yield (key, make(key)) in order, each made while the caller works on the one before. Errors of `make` are raised
    at their turn. A single key is made on the caller's thread."""
    remaining = iter(keys)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        yield from ((key, make(key)) for key in first)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="edgelearn-prefetch") as pool:
        waiting = (first[0], pool.submit(make, first[0]))
        for key in chain(first[1:], remaining):
            following = (key, pool.submit(make, key))
            yield waiting[0], waiting[1].result()
            waiting = following
        yield waiting[0], waiting[1].result()
