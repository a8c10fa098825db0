import errno
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from edgelearn import atomic
from edgelearn.errors import FormatError, RunError


def fail_with(number):
    def fail(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    return fail


def test_write_replaces_and_keeps_the_old_file_as_the_previous_one(tmp_path):
    path, previous = tmp_path / "file", tmp_path / "before"
    for content in (b"old", b"", b"new" * 100_000):
        atomic.write_bytes(path, content)
        assert path.read_bytes() == content and os.listdir(tmp_path) == ["file"]
    path.unlink()
    atomic.write_bytes(path, b"1", previous=previous)
    assert not previous.exists()
    atomic.write_bytes(path, b"2", previous=previous)
    atomic.write_bytes(path, b"3", previous=previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")


def test_file_and_folder_are_flushed_around_the_rename(tmp_path, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)

        def recording(*arguments, name=name, call=call):
            where = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else arguments[1]
            events.append((name, Path(where).suffix or Path(where).name))
            return call(*arguments)

        monkeypatch.setattr(os, name, recording)
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to tell which file was flushed")
    atomic.write_bytes(tmp_path / "a.txt", b"text")
    assert events == [("fsync", ".tmp"), ("replace", ".txt"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_full_disk_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "record.json"
    atomic.write_json(path, {"epoch": 1})
    monkeypatch.setattr(os, call, fail_with(errno.ENOSPC))
    with pytest.raises(RunError) as caught:
        atomic.write_bytes(path, b"x" * 12_345)
    monkeypatch.undo()
    assert all(part in str(caught.value) for part in (str(path), "12,345 bytes", "no room", "Free at least"))
    assert json.loads(path.read_text()) == {"epoch": 1}
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_full_disk_keeps_the_old_lines(tmp_path, monkeypatch, call):
    path = tmp_path / "lines"
    atomic.append_line(path, "one")
    written = os.write

    def write_half(descriptor, data):
        if len(data) > 2:
            return written(descriptor, data[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, write_half if call == "write" else fail_with(errno.ENOSPC))
    with pytest.raises(RunError, match="no room"):
        atomic.append_line(path, "two")
    monkeypatch.undo()
    assert path.read_bytes() == b"one\n"
    atomic.append_line(path, "two")
    assert atomic.read_lines(path) == ["one", "two"]


def test_a_real_limit_of_the_system(tmp_path):
    """The kernel itself refuses to let the file grow, after a part of it was written."""
    path = tmp_path / "big"
    atomic.write_bytes(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RunError, match="no room"):
            atomic.write_bytes(path, bytes(3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["big"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_folder_that_cannot_be_written(tmp_path, monkeypatch, number):
    (tmp_path / "file").write_text("")
    for folder in ("missing", "file"):
        with pytest.raises(RunError, match="there is no folder"):
            atomic.write_bytes(tmp_path / folder / "name", b"data")
    if os.geteuid():  # the superuser may write anywhere
        tmp_path.chmod(0o555)
        with pytest.raises(RunError, match="can't be written"):
            atomic.write_bytes(tmp_path / "file", b"data")
    monkeypatch.setattr(os, "open", fail_with(number))
    with pytest.raises(RunError, match=r"(?s)can't be written.*permission.*EDGELEARN_RUNS"):
        atomic.write_bytes(tmp_path / "file", b"data")


def test_interrupt_removes_the_temporary_file(tmp_path, monkeypatch):
    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_bytes(tmp_path / "file", b"data")
    assert os.listdir(tmp_path) == []


def test_a_torn_line_is_ignored_and_then_repaired(tmp_path):
    path = tmp_path / "lines"
    assert atomic.read_lines(path) == []
    atomic.append_line(path, "one")
    for torn in (b"t", b'{"whole": "but for its newline"}', b"\xff", b"x" * 200_000):
        with path.open("ab") as file:
            file.write(torn)
        before = atomic.read_lines(path)
        atomic.append_line(path, "next")
        assert atomic.read_lines(path) == [*before, "next"]
    assert atomic.read_lines(path) == ["one"] + 4 * ["next"]
    path.write_bytes(b"x" * 150_000)  # nothing but a torn line
    assert atomic.read_lines(path) == []
    atomic.append_line(path, "one")
    assert path.read_bytes() == b"one\n"


def test_lines_are_text_without_newline(tmp_path):
    with pytest.raises(RunError, match="newline"):
        atomic.append_line(tmp_path / "lines", "a\nb")
    (tmp_path / "lines").write_bytes(b"\xff\n")
    with pytest.raises(FormatError, match="lines"):
        atomic.read_lines(tmp_path / "lines")


def test_json_of_numpy_and_paths():
    value = {"a": np.float32(0.5), "b": np.arange(3), "c": Path("x"), "d": np.bool_(True), "e": np.int64(3)}
    assert json.loads(atomic.to_json(value)) == {"a": 0.5, "b": [0, 1, 2], "c": "x", "d": True, "e": 3}
    for value in ({"a": object()}, {(1, 2): 3}, 1j, np.complex64(1)):
        with pytest.raises(RunError, match="JSON"):
            atomic.to_json(value)


def test_leftovers_are_removed(tmp_path):
    (tmp_path / ".run.json.0123abcd.tmp").write_text("half")
    (tmp_path / "notes.tmp").write_text("the user's own")
    atomic.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["notes.tmp"]
