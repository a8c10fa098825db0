import errno
import os

import pytest

from edgelearn.errors import RunError
from edgelearn.lab.runs import run as module
from edgelearn.lab.runs.run import Lock, is_held

HOLD = """
import sys, time
from pathlib import Path
from edgelearn.lab.runs.run import Lock
lock = Lock(Path(sys.argv[1]))
lock.acquire()
{then}
print("held", flush=True)
time.sleep(60)
"""
FORK = """
import os
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, b"1")
    time.sleep(60)
    os._exit(0)
os.read(reading, 1)
print(child, flush=True)
"""


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "lock"
    first, second = Lock(path), Lock(path)
    assert not is_held(path)
    first.acquire()
    first.acquire()
    assert first.held
    assert is_held(path)
    with pytest.raises(RunError, match=rf"process {os.getpid()} \(this one\)"):
        second.acquire()
    assert not second.held
    first.release()
    assert not is_held(path)
    second.acquire()
    assert second.held


def test_a_forgotten_lock_is_given_back(tmp_path):
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    del lock
    assert not is_held(tmp_path / "lock")


def test_a_dead_process_holds_nothing(tmp_path, start_python):
    path = tmp_path / "lock"
    holder = start_python("-c", HOLD.format(then=""), path)
    assert holder.stdout.readline() == "held\n"
    assert is_held(path)
    with pytest.raises(RunError, match=f"process {holder.pid} on"):
        Lock(path).acquire()
    holder.kill()
    holder.wait()
    assert not is_held(path)
    lock = Lock(path)
    lock.acquire()
    assert lock.held


def test_a_fork_does_not_outlive_the_lock(tmp_path, start_python):
    path = tmp_path / "lock"
    holder = start_python("-c", HOLD.format(then=FORK), path)
    child = int(holder.stdout.readline())
    try:
        assert holder.stdout.readline() == "held\n"
        assert is_held(path)
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        assert not is_held(path)
    finally:
        os.kill(child, 9)


def test_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(_descriptor, blocking):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(module, "lock_descriptor", refuse)
    with pytest.raises(RunError, match="EDGELEARN_RUNS"):
        Lock(tmp_path / "lock").acquire()


def test_holder_that_left_no_name(tmp_path):
    path = tmp_path / "lock"
    first = Lock(path)
    first.acquire()
    path.write_text("")
    with pytest.raises(RunError, match="another process"):
        Lock(path).acquire()


def test_folder_that_is_gone(tmp_path):
    with pytest.raises(RunError, match="there is no folder"):
        Lock(tmp_path / "gone" / "lock").acquire()
