"""Memory for offloaded activations: the host's, or a memory-mapped file."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from edgelearn.errors import PagingError

ZEROS = 1 << 20  # bytes written at a time


class Pages:
    """Memory for offloaded activations, as the uint8 array `words`.

    Arguments:
    - `nbytes`: size in bytes.
    - `folder`: place of a memory-mapped file (see `on_disk`); default: the host's memory.

    Raises PagingError if the folder can't be written, or the disk or the memory is too small.
    """

    def __init__(self, nbytes: int, folder: str | None = None) -> None:
        self.nbytes = nbytes
        try:
            self.words = np.zeros(nbytes, np.uint8) if folder is None else on_disk(nbytes, folder)
        except MemoryError:
            raise PagingError(
                f"The host's memory has no {nbytes:,} bytes for activations: offload fewer of them, or to a file "
                f"(Offload(folder))."
            ) from None
        except OSError as error:
            raise PagingError(
                f"'{folder}' has no {nbytes:,} bytes for activations: {error.strerror}. Name a writable folder with "
                f"enough space, offload fewer activations, or offload to the host's memory."
            ) from None


def on_disk(nbytes: int, folder: str | Path) -> np.ndarray:
    """Map a file of `nbytes` bytes in `folder` as a uint8 array. Its space is reserved first, because writing to a
    mapped file on a full disk kills the process. The file has no name, so none is left behind. Raises OSError."""
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
