"""HDF5 files and archives that hang, lie about sizes, or lead elsewhere."""

import io
import time
import zipfile

import h5py
import numpy as np
import pytest

from edgelearn import child
from edgelearn.errors import FormatError
from edgelearn.interop import foreign
from edgelearn.interop.foreign import open_arrays

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def hdf5(tmp_path):
    """hdf5(fill): the path of a file that `fill` was called with."""

    def make(fill, name="x.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["honest"] = VALUES
            fill(file)
        return tmp_path / name

    return make


def read(path, kind="hdf5"):
    with open_arrays(path, kind, "a file of arrays") as file:
        return file.read()


def refused(path, named, kind="hdf5"):
    begin = time.monotonic()
    with pytest.raises(FormatError, match=named) as caught:
        read(path, kind)
    assert str(path) in str(caught.value)
    assert time.monotonic() - begin < 8


def test_arrays_and_texts(hdf5):
    def fill(file):
        file["group/doubles"] = np.float64(VALUES)
        file["group/scalar"] = 3
        file.create_dataset("group/packed", data=np.zeros((100, 100)), compression="gzip", chunks=(7, 9))
        file["group"].attrs["weight_names"] = ["a", "b"]

    path = hdf5(fill)
    with open_arrays(path, "hdf5", "a file") as file:
        assert file.texts == {"group@weight_names": ["a", "b"]}
        assert file.arrays["group/packed"].shape == (100, 100)
        found = file.read(["group/packed", "honest"])
        assert found.keys() == {"group/packed", "honest"}
        assert np.array_equal(file.read(["group/doubles"])["group/doubles"], VALUES)
    assert np.array_equal(found["honest"], VALUES)
    path.unlink()  # it is open no more, which Windows would mind


def test_arrays_in_the_order_of_fortran_and_of_big_ends(tmp_path):
    arrays = {"f": np.asfortranarray(VALUES), "big": VALUES.astype(">f4"), "empty": np.zeros((0, 3)), "one": np.int8(3)}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    found = read(tmp_path / "x.npz", "npz")
    assert all(
        np.array_equal(found[name], array) and found[name].shape == array.shape for name, array in arrays.items()
    )


def test_other_files_are_not_read(hdf5, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(24))
    refused(hdf5(lambda f: f.create_dataset("out", (6,), "f4", external=[(str(secret), 0, 24)])), "out.*another file")
    hdf5(lambda f: None, "other.h5")
    refused(hdf5(lambda f: f.__setitem__("out", h5py.ExternalLink("other.h5", "honest"))), "out.*another file")
    layout = h5py.VirtualLayout((2, 3), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "honest", (2, 3))
    refused(hdf5(lambda f: f.create_virtual_dataset("out", layout)), "out.*other files")


def test_links_in_circles(hdf5):
    def soft(file):
        file["a"] = h5py.SoftLink("/b")
        file["b"] = h5py.SoftLink("/a")

    def hard(file):
        group = file.create_group("a/b")
        group["c"] = file["a"]

    refused(hdf5(soft), "'a' is a link")
    refused(hdf5(lambda f: f.__setitem__("up", h5py.SoftLink("/"))), "'up' is a link")
    refused(hdf5(hard), "circle")


def test_sizes_are_not_believed(hdf5):
    def huge(file):
        file.create_dataset("huge", (1 << 20, 1 << 20), "f4", chunks=(64, 64), fillvalue=1)

    def big_chunk(file):
        file.create_dataset("chunk", (16,), "f4", maxshape=(None,), chunks=(1 << 28,), compression="gzip")

    def many(file):
        for n in range(12):
            file.create_dataset(f"part{n}", (1 << 23,), "f4", chunks=(1 << 20,))  # 32 MiB each

    def text(file):
        file.create_group("g").attrs["weight_names"] = np.array([b"x" * 60_000])

    for fill, named in ((huge, "huge.*1048576"), (big_chunk, "chunk"), (many, r"part\d")):
        path = hdf5(fill)
        assert path.stat().st_size < 20_000
        refused(path, named)
    assert len(read(hdf5(text))) == 1


def test_an_archive_that_unpacks_to_more_than_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "LEAST", 1 << 24)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (1 << 23,)})
        for _ in range(4):
            member.write(bytes(1 << 23))
    assert path.stat().st_size < 100_000
    refused(path, "x.npy.*unpacks to", "npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", header.getvalue())
    refused(path, "'y'.*1099511627776", "npz")
    refused(path, "config.json", "keras")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("import time\ntime.sleep(60)", "nothing computed"),
        ("while True: pass", "seconds of computing"),
        ("import time\nwhile True: time.sleep(0.1), sum(range(10**6))", r"no end after 2 seconds\)"),
        ("import os\nos.abort()", "SIGABRT"),
        ("import sys\nsys.stdin.readline()\nheap = []\nwhile True: heap.append(bytearray(b'x' * 1_000_000))", "memory"),
    ],
)
def test_a_reader_that_hangs_crashes_or_grows(hdf5, tmp_path, monkeypatch, body, named):
    script = tmp_path / "reader.py"
    script.write_text(body)
    path = hdf5(lambda file: None)
    monkeypatch.setattr(foreign, "SCRIPT", script)
    monkeypatch.setattr(foreign, "_kept", [])
    monkeypatch.setattr(child, "STILL", 1.0 if "nothing" in named else 20.0)
    monkeypatch.setattr(child, "SHARE", 0.25 if "no end" in named else 0.01)
    monkeypatch.setattr(foreign, "LEAST", 1 << 24)
    monkeypatch.setattr(foreign, "SECONDS", 20.0 if named == "memory" else 0.5)
    refused(path, named)
    assert foreign._kept == []
    monkeypatch.undo()
    assert np.array_equal(read(path)["honest"], VALUES)


def test_the_process_is_kept_for_the_next_file(hdf5, tmp_path):
    path = hdf5(lambda file: None)
    read(path)
    ((_, worker),) = foreign._kept
    (tmp_path / "bad.h5").write_text("weights")
    refused(tmp_path / "bad.h5", "signature")
    with pytest.raises(FormatError, match="nothing"), open_arrays(path, "hdf5", "a file") as file:
        file.read(["nothing"])
    assert foreign._kept[0][1] is worker
    assert worker.process.poll() is None
    with open_arrays(path, "hdf5", "a file") as outer, open_arrays(path, "hdf5", "a file") as inner:
        assert np.array_equal(outer.read()["honest"], inner.read()["honest"])
