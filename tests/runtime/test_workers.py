import ctypes
import itertools
import os
import threading
from pathlib import Path

import pytest

from edgelearn.runtime.driver import POCL_THREADS, a_core_each

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are seen on Linux only")


class Threads:
    """Threads that wait until they are told to end."""

    def __init__(self, count: int) -> None:
        self.end, ready = threading.Event(), threading.Barrier(count + 1)
        self.ids: list[int] = []

        def wait() -> None:
            self.ids.append(threading.get_native_id())
            ready.wait()
            self.end.wait()

        self.threads = [threading.Thread(target=wait) for _ in range(count)]
        for thread in self.threads:
            thread.start()
        ready.wait()

    def stop(self) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def driver():
    """A driver that was never opened, at each call."""
    numbers = itertools.count()
    return lambda: ("a driver of the tests", next(numbers), object())


def pocl_threads() -> str | None:
    """What C's getenv returns."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    found = getenv(POCL_THREADS.encode())
    return found and found.decode()


def affinities(count: int, driver) -> list[set[int]]:
    with a_core_each(driver):
        threads = Threads(count)
    try:
        return [os.sched_getaffinity(thread) for thread in sorted(threads.ids)]
    finally:
        threads.stop()


def test_as_many_threads_as_cores_get_one_each(driver):
    cores = os.sched_getaffinity(0)
    assert sorted(core for found in affinities(len(cores), driver()) for core in found) == sorted(cores)
    assert os.sched_getaffinity(0) == cores, "the caller is left alone"


def test_other_numbers_are_left_to_the_scheduler(driver):
    cores = os.sched_getaffinity(0)
    assert affinities(len(cores) + 1, driver()) == [cores] * (len(cores) + 1)
    with a_core_each(driver()):
        pass


def test_threads_that_others_start_meanwhile_are_left_alone(driver):
    cores, found = os.sched_getaffinity(0), {}
    opening, go = threading.Event(), threading.Event()

    def other():
        opening.wait()
        found["other's"] = Threads(len(cores))
        go.set()

    thread = threading.Thread(target=other)
    thread.start()
    with a_core_each(driver()):
        found["driver's"] = Threads(len(cores))
        opening.set()
        go.wait()
    thread.join()
    pinned = {who: [os.sched_getaffinity(i) for i in sorted(threads.ids)] for who, threads in found.items()}
    for threads in found.values():
        threads.stop()
    assert pinned["other's"] == [cores] * len(cores)
    assert pinned["driver's"] == [{core} for core in sorted(cores)]


def test_names_of_threads_are_as_before(driver):
    mine = f"/proc/self/task/{threading.get_native_id()}/comm"
    before = Path(mine).read_text()
    with a_core_each(driver()):
        threads = Threads(1)
    own = Path(f"/proc/self/task/{threads.ids[0]}/comm").read_text()
    threads.stop()
    assert (Path(mine).read_text(), own) == (before, before)


def test_pocl_alone_is_told_how_many_threads_to_start(monkeypatch, driver):
    monkeypatch.delenv(POCL_THREADS, raising=False)
    with a_core_each(driver()):
        assert pocl_threads() == str(len(os.sched_getaffinity(0)))
        assert POCL_THREADS not in os.environ, "the program's own environment"
    assert pocl_threads() is None
    monkeypatch.setenv(POCL_THREADS, "1")
    with a_core_each(driver()):
        assert pocl_threads() == "1", "a user's own number is left alone"
    assert pocl_threads() == "1"


def test_a_driver_that_is_open_changes_nothing(monkeypatch, driver):
    monkeypatch.delenv(POCL_THREADS, raising=False)
    opened = driver()
    with pytest.raises(OSError, match="it failed"), a_core_each(opened):
        raise OSError("it failed")
    assert pocl_threads() is None
    for expected in (str(len(os.sched_getaffinity(0))), None):
        with a_core_each(opened):
            assert pocl_threads() == expected
