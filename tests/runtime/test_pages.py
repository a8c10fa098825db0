"""Pages in memory and in files; full disks and folders that can't be written."""

import os
import resource

import numpy as np
import pytest

from edgelearn.errors import PagingError
from edgelearn.runtime import Pages, pages


@pytest.fixture(params=("memory", "file", "file, written out"))
def folder(request, tmp_path, monkeypatch):
    if request.param == "file, written out":
        monkeypatch.delattr("os.posix_fallocate")
    return None if request.param == "memory" else str(tmp_path)


def test_pages_hold_what_is_written(folder, tmp_path):
    held = Pages(3_000_001, folder)
    bits = np.random.default_rng(0).integers(0, 256, held.nbytes, np.uint8)
    held.words[:] = bits
    assert np.array_equal(held.words, bits) and held.words.nbytes == 3_000_001
    assert not list(tmp_path.iterdir()), "a file has no name"


@pytest.mark.usefixtures("folder")
def test_a_file_has_its_room_on_the_disk(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        pages._reserve(file, 1 << 20)
        status = os.fstat(file.fileno())
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20


def test_a_full_disk(folder, tmp_path):
    """As far as a process may be told that a file has no more room."""
    if folder is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(PagingError, match=r"2,000,000 bytes.*File too large"):
            Pages(2_000_000, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_folders_that_are_none(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder, why in ((tmp_path / "missing", "No such file or directory"), (file, "Not a directory")):
        with pytest.raises(PagingError, match=why):
            Pages(100, str(folder))


def test_more_than_the_host_has():
    with pytest.raises(PagingError, match=r"1,000,000,000,000,000,000 bytes"):
        Pages(10**18)
