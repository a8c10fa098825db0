"""Prepare the next item on a thread while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def ahead(keys: Iterable[Key], make: Callable[[Key], Value]) -> Iterator[tuple[Key, Value]]:
    """(key, make(key)) in order, each made while the caller works on the one before. Errors of `make` come out here."""
    with ThreadPoolExecutor(1, thread_name_prefix="edgelearn-prefetch") as pool:
        waiting = None
        for key in keys:
            following = (key, pool.submit(make, key))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()
