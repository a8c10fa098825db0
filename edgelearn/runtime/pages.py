"""Memory outside the device for what it has no room for: the host's, or a file that is mapped to it."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from edgelearn.errors import PagingError

ZEROS = 1 << 20  # bytes written at a time


class Pages:
    """`nbytes` bytes as `words`, uint8: of the host's memory or, given a `folder`, of a file there (see `on_disk`),
    through the system's cache. Raises PagingError for a folder that can't be written, for a full disk, and where there
    isn't as much memory."""

    def __init__(self, nbytes: int, folder: str | None = None) -> None:
        self.nbytes = nbytes
        try:
            self.words = np.zeros(nbytes, np.uint8) if folder is None else on_disk(nbytes, folder)
        except MemoryError:
            raise PagingError(
                f"The host's memory has no {nbytes:,} bytes for activations: page fewer of them, or page to a file "
                f"(Offload(folder))."
            ) from None
        except OSError as error:
            raise PagingError(
                f"'{folder}' has no {nbytes:,} bytes for activations: {error.strerror}. Name a folder that exists, can "
                f"be written and has room, page fewer of them, or page to the host's memory."
            ) from None


def on_disk(nbytes: int, folder: str | Path) -> np.ndarray:
    """`nbytes` bytes, uint8, of a file in `folder`, all of which has its place on the disk before anything is written:
    a mapped file that is found to have no room when it is written ends the process. The file has no name, so that none
    is left however the process ends. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        _reserve(file, nbytes)
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)


def _reserve(file, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return
    zeros = bytes(ZEROS)
    for start in range(0, nbytes, ZEROS):
        file.write(zeros[: nbytes - start])
    file.flush()
