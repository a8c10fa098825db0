"""Process examples on several threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

_WORKERS = min(4, cpu_count() or 1)


def each(work: Callable, values: Iterable) -> list:
    """Return `work(value)` for each of `values`, in order. The first error cancels pending work and is raised, after
    all threads have ended."""
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgelearn-data")
    try:
        return [future.result() for future in [pool.submit(work, value) for value in values]]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
