import errno
import os

import pytest

from edgelearn.errors import RunError
from edgelearn.lab.runs import run as module
from edgelearn.lab.runs.run import Lock, is_held

HOLD = """
import os, sys, time
from pathlib import Path
from edgelearn.lab.runs.run import Lock
lock = Lock(Path(sys.argv[1]))
lock.acquire()
if sys.argv[2] == "fork":
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"1")
        time.sleep(60)
        os._exit(0)
    os.read(reading, 1)
    print(child, flush=True)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_one_holder_at_a_time(path):
    first, second = Lock(path), Lock(path)
    assert not is_held(path)
    first.acquire()
    first.acquire()
    assert first.held and is_held(path)
    with pytest.raises(RunError, match=rf"process {os.getpid()} \(this one\)"):
        second.acquire()
    assert not second.held
    path.write_text("")
    with pytest.raises(RunError, match="another process"):  # a holder that left no name
        second.acquire()
    first.release()
    assert not is_held(path)
    second.acquire()
    assert second.held
    del second
    assert not is_held(path), "a forgotten lock is given back"


def test_a_dead_process_holds_nothing(path, start_python):
    holder = start_python("-c", HOLD, path, "")
    assert holder.stdout.readline() == "held\n" and is_held(path)
    with pytest.raises(RunError, match=f"process {holder.pid} on"):
        Lock(path).acquire()
    holder.kill()
    holder.wait()
    assert not is_held(path)
    lock = Lock(path)
    lock.acquire()
    assert lock.held


def test_a_fork_does_not_outlive_the_lock(path, start_python):
    holder = start_python("-c", HOLD, path, "fork")
    child = int(holder.stdout.readline())
    try:
        assert holder.stdout.readline() == "held\n" and is_held(path)
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        assert not is_held(path)
    finally:
        os.kill(child, 9)


def test_where_nothing_can_be_locked(path, monkeypatch):
    def refuse(_descriptor, blocking):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with pytest.raises(RunError, match="there is no folder"):
        Lock(path.parent / "gone" / "lock").acquire()
    monkeypatch.setattr(module, "lock_descriptor", refuse)
    with pytest.raises(RunError, match="EDGELEARN_RUNS"):
        Lock(path).acquire()
