"""Work on many examples on a few threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

_WORKERS = min(4, cpu_count() or 1)


def each(work: Callable, values: Iterable) -> list:
    """`work(value)` for each of `values`, in their order. The first error stops what hasn't begun, and is raised; no
    thread stays behind."""
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgelearn-data")
    try:
        return [future.result() for future in [pool.submit(work, value) for value in values]]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
