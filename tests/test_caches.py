"""Cache folders that can't be written, or have no room."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from edgelearn import caches
from edgelearn.errors import KernelError
from edgelearn.runtime import driver, kernels, list_devices
from edgelearn.runtime.driver import POCL

ROOT = Path(__file__).parents[1]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder of temporary files of the test's own, and nothing remembered."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(caches.tempfile, "tempdir", str(folder))
    monkeypatch.setattr(caches, "MEMORY", tmp_path / "memory")
    for each in (caches._unwritable, caches._temporary, caches._warn):
        each.cache_clear()
    yield folder
    for each in (caches._unwritable, caches._temporary, caches._warn):
        each.cache_clear()


@pytest.fixture
def blocked(tmp_path):
    """A folder below a file: the superuser can't write there either."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_a_folder_that_can_be_written_is_used_and_not_made(tmp_path):
    assert caches.place(tmp_path / "a" / "b", "X") == caches.Place(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_a_temporary_folder_takes_its_place(blocked, temporary, caplog):
    for _ in range(3):
        found = caches.place(blocked, "MY_VARIABLE")
    assert (
        found.folder.parents[1] == temporary and found.folder.name == "cache" and str(blocked.parent) in found.problem
    )
    assert found.folder.parent.stat().st_mode & 0o077 == 0
    assert len(caplog.records) == 1 and "MY_VARIABLE" in caplog.text and str(found.folder) in caplog.text


def test_a_folder_that_others_can_write_is_not_trusted(blocked, temporary):
    name = caches.place(blocked, "X").folder.parent
    name.chmod(0o777)
    caches._temporary.cache_clear()
    assert caches.place(blocked, "X").folder is None


def test_no_room(tmp_path, temporary, monkeypatch, caplog):
    free = {tmp_path: 10, temporary: 10**9}
    full = lambda path: Usage(0, 0, next(v for k, v in reversed(free.items()) if Path(path).is_relative_to(k)))  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", full)
    found = caches.place(tmp_path / "cache", "X", room=100)
    assert found.folder.is_relative_to(temporary) and "MB" in found.problem
    free[temporary] = 10
    assert caches.place(tmp_path / "cache", "X", room=100).folder is None
    assert caches.place(tmp_path / "cache", "X", room=5) == caches.Place(tmp_path / "cache")


def test_an_empty_variable_turns_a_cache_off(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_CACHE", "")
    assert caches.folder("programs", "MY_CACHE") is None
    monkeypatch.setenv("MY_CACHE", str(tmp_path / "mine"))
    assert caches.folder("programs", "MY_CACHE") == tmp_path / "mine"
    monkeypatch.delenv("MY_CACHE")
    assert caches.chosen("programs", "MY_CACHE").name == "programs"


def test_pocl_is_not_asked_to_compile_where_it_would_end_the_process(monkeypatch):
    device = list_devices()[0]
    monkeypatch.setattr(caches, "problem", lambda folder, room: "full")
    if device.platform != POCL:
        kernels._require_room(device)
        return
    with pytest.raises(KernelError, match=driver.POCL_CACHE):
        kernels._require_room(device)


PROGRAM = """
import numpy as np
from edgelearn.runtime import Context, kernels, list_devices
context = Context(list_devices()[0])
import pyopencl as cl
memory = context.allocate(64, "x")
kernel = cl.Kernel(kernels.build(context, "__kernel void one(__global float *x) { x[get_global_id(0)] = 1; }"), "one")
kernel.set_args(memory.handle)
cl.enqueue_nd_range_kernel(context.queue, kernel, (16,), (1,))
print(context.read(memory.handle, np.empty(16, np.float32)).sum())
"""


def test_a_home_that_can_not_be_written(blocked, temporary):
    """Neither PoCL's cache nor pyopencl's, which lie below it, keep the device from being found and used."""
    names = ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "EDGELEARN_TUNED", "EDGELEARN_PROGRAMS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HOME": str(blocked), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "16.0\n"
    said = [line for line in done.stderr.splitlines() if "can't be used" in line]
    assert len(said) == len(set(said)) > 0
    if any(device.platform == POCL for device in list_devices()):
        assert "POCL_CACHE_DIR" in done.stderr


def test_an_empty_name_of_pocls_folder_is_none():
    code = "import edgelearn, os; print(len(edgelearn.list_devices()), 'POCL_CACHE_DIR' in os.environ)"
    environment = os.environ | {"POCL_CACHE_DIR": ""}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    count, named = ran.stdout.split()
    assert int(count) > 0 and named == "False"
