"""Memory outside the device: pages of offloaded activations, and the feature cache of a frozen prefix."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edgelearn.compile import LaunchTimes, Offload
from edgelearn.compile.memory import Encoding
from edgelearn.device import Device
from edgelearn.errors import DataError, NonFiniteError, PagingError
from edgelearn.ops.tensor import BLOCK, Empty, Shape, ceil_div, unpack

from .context import Context

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


DTYPES = {"fp32": np.float32, "fp16": np.float16}
HALF_LIMIT = 65504.0  # the largest fp16


class FeatureCache:
    """A source of features that sessions read without packing them.

    They are stored as [channels / block][example][pixels][block], so that taking examples copies stretches of memory.

    Arguments:
    - `shape`: shape of one example's features, (height, width, channels) or (channels,).
    - `count`: number of examples.
    - `dtype`: `"fp32"` (the same values as without a cache) or `"fp16"` (half the memory, values rounded to 11 bits).
    - `folder`: where to keep them in a file without a name; default: in memory.
    - `block`: channel block of the input of the network that reads them (default 16).

    Raises DataError when there is no room.
    """

    def __init__(
        self, shape: Shape, count: int, dtype: str = "fp32", folder: Path | None = None, block: int = BLOCK
    ) -> None:
        self.shape, self.dtype = (count, *shape), np.dtype(DTYPES[dtype])
        layout = (ceil_div(shape[-1], block), count, prod(shape[:-1]), block)
        nbytes = prod(layout) * self.dtype.itemsize
        try:
            words = np.empty(nbytes, np.uint8) if folder is None else on_disk(nbytes, folder)
        except (OSError, MemoryError) as error:
            raise DataError(
                f"The feature cache of {nbytes:,} bytes can't be made in {folder or 'memory'}: "
                f"{getattr(error, 'strerror', None) or 'there is too little'}. Use the fp16 cache, which is half as "
                f"large, another folder for it, or no cache."
            ) from None
        self.words = words.view(self.dtype).reshape(layout)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The features of some examples: float32 (n, ...)."""
        return unpack(self.device_layout(indices), (len(indices), *self.shape[1:]), self.words.shape[-1])

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def put(self, first: int, count: int, packed: np.ndarray) -> None:
        """Store the features of examples first, first + 1, ..., as `Session.predict_packed` returns them.

        Raises NonFiniteError when one is a NaN or an infinity, DataError when it doesn't fit fp16.
        """
        blocks, _, pixels, block = self.words.shape
        words = packed.reshape(blocks, count, pixels, BLOCK)[..., :block]
        largest = np.abs(words).max(axis=(0, 2, 3))
        if not np.isfinite(largest).all():
            example = first + int(np.argmin(np.isfinite(largest)))
            raise NonFiniteError(
                f"The frozen layers make a NaN or an infinity of example {example}: either it holds one itself, or the "
                f"frozen weights are too large. Clean the data, or use other weights."
            )
        if self.dtype == np.float16 and largest.max() > HALF_LIMIT:
            raise DataError(
                f"A feature of {largest.max():.3g} is too large for fp16 (at most {HALF_LIMIT:.0f}): use the fp32 "
                f"cache."
            )
        self.words[:, first : first + count] = words

    def device_layout(self, indices: np.ndarray, empty: Empty | None = None) -> np.ndarray:
        """The features of some examples as the device reads them: float32 (blocks, n * pixels, block), in an array that
        `empty` makes (default: a new one). Raises IndexError for an example that isn't there."""
        blocks, count, pixels, block = self.words.shape
        if empty is None:
            words = np.take(self.words, indices, axis=1).astype(np.float32, copy=False)
        else:
            words = empty((blocks, len(indices), pixels, block), "float32")
            places = np.arange(count)[indices]  # as NumPy reads them: with mode="clip", take would not check
            if self.dtype == np.float32:
                np.take(self.words, places, axis=1, out=words, mode="clip")
            else:
                words[...] = np.take(self.words, places, axis=1)
        return words.reshape(blocks, -1, block)


PROBE, REPEATS = 1 << 20, 9  # bytes copied out and in, and how often


def launch_times(device: Device, allow: Sequence[Encoding] = ()) -> LaunchTimes:
    """The launch times known for `device`; with measured copies where `allow` has an Offload. Raises PagingError."""
    known = LaunchTimes.of(device)
    offload = next((strategy for strategy in allow if isinstance(strategy, Offload)), None)
    return known if offload is None else replace(known, paging=bytes_per_second(device, offload.folder))


def bytes_per_second(device: Device, folder: str | None = None) -> float:
    """Median speed of copies out and in again, to the host's memory or to a file in `folder`. Raises PagingError."""
    context, pages = Context(device), Pages(PROBE, folder)
    memory = context.allocate(PROBE, "probe")
    seconds = []
    for _ in range(REPEATS):
        start = perf_counter()
        context.read(memory.handle, pages.words)
        context.write(memory.handle, pages.words)
        seconds.append(perf_counter() - start)
    memory.release()
    return 2 * PROBE / float(np.median(seconds))


def forget_pages(arrays: Mapping[str, np.ndarray]) -> None:
    """Give back the memory that holds pages of files which arrays are mapped from; they are read again when needed."""
    files = {}
    for array in arrays.values():
        base: Any = array
        while isinstance(base, np.ndarray):
            if isinstance(base, np.memmap) and base.mode == "r" and isinstance(base.base, mmap.mmap):
                files[id(base.base)] = base.base
            base = base.base
    for file in files.values():
        if hasattr(mmap, "MADV_DONTNEED"):  # Windows has none
            file.madvise(mmap.MADV_DONTNEED)
