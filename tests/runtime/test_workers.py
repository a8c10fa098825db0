import os
import threading

import pytest

from edgelearn.runtime.workers import POCL_THREADS, a_core_each

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


def affinities(count: int) -> list[set[int]]:
    with a_core_each():
        threads = Threads(count)
    try:
        return [os.sched_getaffinity(thread) for thread in sorted(threads.ids)]
    finally:
        threads.stop()


def test_as_many_threads_as_cores_get_one_each():
    cores = os.sched_getaffinity(0)
    assert sorted(core for found in affinities(len(cores)) for core in found) == sorted(cores)
    assert os.sched_getaffinity(0) == cores, "the caller is left alone"


def test_other_numbers_are_left_to_the_scheduler():
    cores = os.sched_getaffinity(0)
    assert affinities(len(cores) + 1) == [cores] * (len(cores) + 1)
    with a_core_each():
        pass


def test_pocl_is_told_how_many_threads_to_start(monkeypatch):
    monkeypatch.delenv(POCL_THREADS, raising=False)
    with a_core_each():
        assert os.environ[POCL_THREADS] == str(len(os.sched_getaffinity(0)))
    assert POCL_THREADS not in os.environ
    monkeypatch.setenv(POCL_THREADS, "1")
    with a_core_each():
        assert os.environ[POCL_THREADS] == "1", "a user's own number is left alone"
    assert os.environ[POCL_THREADS] == "1"
