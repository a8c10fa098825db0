"""HDF5 files and archives of strangers, read by a process of its own with limits of time and memory.

libhdf5 hangs on some damaged files, follows links to other files, and believes the sizes that a file states. So the
process in `foreign_worker` opens the file and sends shapes first, then the arrays that are asked for. It is killed when
it takes too long or too much. It is kept for the next file for some seconds.
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.child import Child
from edgelearn.errors import FormatError

SCRIPT = Path(__file__).with_name("foreign_worker.py")
SECONDS = 3.0  # of a processor that a small file may take
BYTES_PER_SECOND = 10_000_000  # a large file may take longer
LEAST = 1 << 26  # bytes that the arrays of a small file may take
EXPANSION = 8  # times its own size that a large file may unpack to
NUMBERS = "fiub"  # kinds of NumPy types
IDLE = 20  # seconds for which a process is kept; it ends itself after 30


@dataclass(frozen=True)
class Entry:
    """An array as its file describes it.

    Arguments:
    - `shape`: its axes.
    - `dtype`: NumPy's type.
    - `fortran`: True if its first axis changes fastest.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool = False


class ArrayFile:
    """An open file of arrays; made by `open_arrays`.

    Arguments:
    - `path`: the file.
    - `worker`: the process that has opened it.
    - `arrays`: shape and type of each array, by name.
    - `texts`: texts of the file: "GROUP@ATTRIBUTE" of HDF5, "config.json" of .keras archives, and what edgelearn wrote
      into a state dict.
    """

    def __init__(self, path: Path, worker: _Reader, arrays: dict[str, Entry], texts: dict[str, Any]) -> None:
        self.path, self._worker, self.arrays, self.texts = path, worker, arrays, texts

    def entry(self, name: str) -> Entry:
        """Shape and type of an array. Raises FormatError if there is none, or it doesn't hold numbers."""
        if name not in self.arrays:
            raise FormatError(f"{self.path} is damaged: it has no array '{name:.200}'. Fetch it again.")
        if self.arrays[name].dtype.kind not in NUMBERS:
            raise FormatError(
                f"{self.path}: '{name:.200}' is {self.arrays[name].dtype} of shape {self.arrays[name].shape}, not "
                f"numbers. Give a file of plain arrays."
            )
        return self.arrays[name]

    def read(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Read arrays by name (default: all). Raises FormatError naming the file."""
        names = list(self.arrays if names is None else names)
        for name in names:
            self.entry(name)
        self._worker.ask({"read": names})
        arrays = {name: self._array(self.arrays[name]) for name in names}
        self._worker.answered = True
        return arrays

    def _array(self, entry: Entry) -> np.ndarray:
        data = bytearray()
        size = prod(entry.shape) * entry.dtype.itemsize
        while len(data) < size:
            data += self._worker.receive(b"D", size - len(data))
        return np.frombuffer(data, entry.dtype).reshape(entry.shape, order="F" if entry.fortran else "C")


@contextmanager
def open_arrays(path: str | Path, kind: str, what: str) -> Iterator[ArrayFile]:
    """Open a file of arrays; its arrays are read while the block lasts.

    Arguments:
    - `path`: the file.
    - `kind`: "hdf5", "npz", "keras" (an archive) or "torch" (a file of torch.save).
    - `what`: what the file should be, for errors, such as "a Keras HDF5 file".

    Raises FormatError if there is no such file, if it is damaged or of another format, if it leads to other files, or
    if it takes too long or too much memory.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"There is no file {path}. Give the path of {what}.")
    size = path.stat().st_size
    worker = _take()
    try:
        seconds, memory = SECONDS + size / BYTES_PER_SECOND, max(LEAST, EXPANSION * size)
        with worker.limited(computing=seconds, memory=3 * memory, is_asked=lambda: not worker.answered):
            worker.ask({"open": str(path), "kind": kind, "limit": memory, "memory": 2 * memory})
            description = json.loads(worker.receive(b"J"))
            worker.answered = True
            arrays = {name: _entry(record) for name, record in description["arrays"].items()}
            try:
                yield ArrayFile(path, worker, arrays, description["texts"])
            finally:
                worker.close_file()
    except _Failed as failed:
        raise FormatError(
            f"{path} is not {what}, or is damaged ({failed}). Fetch it again, or give another file."
        ) from None
    finally:
        _give_back(worker)


def _entry(record: dict[str, Any]) -> Entry:
    return Entry(tuple(record["shape"]), np.dtype(record["dtype"]), record.get("fortran", False))


class _Failed(Exception):
    """An answer that didn't come, and why."""


class _Reader(Child):
    """The process that reads, and its answers."""

    def __init__(self) -> None:
        # One thread of BLAS: its address space counts. No filters of HDF5 from outside.
        super().__init__("-P", SCRIPT, environment={"OPENBLAS_NUM_THREADS": "1", "HDF5_PLUGIN_PRELOAD": "::"})
        self.answered = True  # nothing more is to come
        self.idle_since = 0.0

    def ask(self, request: dict[str, Any]) -> None:
        self.answered = False
        try:
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()
        except OSError:
            raise _Failed(self.failure()) from None

    def receive(self, tag: bytes, most: int | None = None) -> bytes:
        """The next frame's contents. Raises _Failed for an error, and for a frame of another kind or size."""
        head = self.answers.read(9)
        size = struct.unpack("<Q", head[1:])[0] if len(head) == 9 else 1
        body = self.answers.read(size) if most is None or size <= most or head[:1] == b"J" else b""
        if len(body) < size:
            raise _Failed(self.failure())
        if head[:1] == b"J" and (tag == b"D" or body.startswith(b'{"error"')):
            self.answered = True
            raise _Failed(json.loads(body)["error"])
        return body

    def close_file(self) -> None:
        if self.answered:
            self.ask({})
            self.receive(b"J")
            self.answered = True


_kept: list[tuple[int, _Reader]] = []  # by the process id of the parent: a fork has no share in it
_lock = threading.Lock()


def _take() -> _Reader:
    with _lock:
        parent, worker = _kept.pop() if _kept else (0, None)
    if worker and parent == os.getpid():
        if worker.process.poll() is None and time.monotonic() - worker.idle_since < IDLE:
            return worker
        worker.close()
    return _Reader()


def _give_back(worker: _Reader) -> None:
    """Keep one process that is not in the middle of an answer."""
    worker.idle_since = time.monotonic()
    with _lock:
        if worker.answered and not worker.reason and not _kept:
            _kept.append((os.getpid(), worker))
            return
    worker.close()


@atexit.register
def _close_all() -> None:
    while _kept:
        parent, worker = _kept.pop()
        if parent == os.getpid():
            worker.close()
