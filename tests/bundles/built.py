"""Bundles built by the system's compiler, and called in this process: so they run on the driver that Python uses."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import pytest

from edgelearn.bundles.native import WARNINGS, Options, Result, compile_library, compiler, opencl_library

FLAGS = (*WARNINGS, "-Werror")
SANITIZED = ("-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILER = compiler()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: gcc or clang")
WRITE = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(ctypes.c_char), c_size_t)


def compiled(folder: Path, *options: str, more: tuple[Path, ...] = ()) -> Path:
    """Build the bundle in `folder` as a shared library, with all warnings as errors."""
    return compile_library(folder, ("-O1", "-Werror", *options), more)


class Built:
    """A bundle's functions. Calls raise an AssertionError unless they return `expected` (0)."""

    def __init__(self, folder: Path, device: str = "", library: Path | None = None) -> None:
        self.folder, self.device = folder, device.encode()
        self.weights = (folder / "model.weights").read_bytes() if (folder / "model.weights").exists() else b""
        self.lib = ctypes.CDLL(str(library or compiled(folder)))
        for name in ("edgelearn_error", "edgelearn_detail", "edgelearn_weight_name"):
            getattr(self.lib, name).restype = c_char_p
        for name in ("edgelearn_weight_size", "edgelearn_output_size", "edgelearn_save_size", "edgelearn_input_size"):
            getattr(self.lib, name).restype = c_size_t
        self.lib.edgelearn_updates.restype = c_uint32

    def open(self, weights: bytes | None = None, **options) -> int:
        content = self.weights if weights is None else weights
        library = opencl_library()
        given = {"library": library.encode() if library else None, "device": self.device} | options
        return self.lib.edgelearn_open(byref(Options(content, len(content), **given)))

    def check(self, code: int, expected: int = 0) -> None:
        assert code == expected, (self.lib.edgelearn_error(code), self.lib.edgelearn_detail())

    def step(self, x, y, rate: float, expected: int = 0) -> Result:
        x = np.ascontiguousarray(x, np.float32)
        y = np.ascontiguousarray(y, np.float32 if np.asarray(y).dtype.kind == "f" else np.int32)
        result = Result()
        code = self.lib.edgelearn_train_step(
            x.ctypes.data_as(c_void_p), y.ctypes.data_as(c_void_p), len(x), c_float(rate), byref(result)
        )
        self.check(code, expected)
        return result

    def step_in_parts(self, x, y, rate: float, size: int) -> Result:
        """One update from micro-batches of `size`, whose arrays change as soon as they were taken."""
        self.check(self.lib.edgelearn_begin_step(len(x), c_float(rate)))
        for start in range(0, len(x), size):
            part, targets = (np.array(each[start : start + size]) for each in (x, y))
            given = part.ctypes.data_as(c_void_p), targets.ctypes.data_as(c_void_p)
            self.check(self.lib.edgelearn_add_examples(*given, len(part)))
            part[:], targets[:] = np.nan, -1
        result = Result()
        self.check(self.lib.edgelearn_end_step(byref(result)))
        return result

    def predict(self, x) -> np.ndarray:
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty((len(x), self.lib.edgelearn_output_size()), np.float32)
        self.check(self.lib.edgelearn_predict(x.ctypes.data_as(c_void_p), len(x), y.ctypes.data_as(c_void_p)))
        return y

    def weight_sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        while name := self.lib.edgelearn_weight_name(len(sizes)):
            sizes[name.decode()] = self.lib.edgelearn_weight_size(len(sizes))
        return sizes

    def get(self, name: str) -> np.ndarray:
        values = np.empty(self.weight_sizes()[name], np.float32)
        self.check(
            self.lib.edgelearn_get_weights(name.encode(), values.ctypes.data_as(c_void_p), c_size_t(values.size))
        )
        return values

    def set(self, name: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, np.float32)
        self.check(
            self.lib.edgelearn_set_weights(name.encode(), values.ctypes.data_as(c_void_p), c_size_t(values.size))
        )

    def save(self) -> bytes:
        pieces: list[bytes] = []

        def write(context, bytes_, size):
            pieces.append(ctypes.string_at(bytes_, size))
            return 0

        self.check(self.lib.edgelearn_save(WRITE(write), None))
        return b"".join(pieces)

    def load(self, state: bytes) -> int:
        return self.lib.edgelearn_load(state, c_size_t(len(state)))

    def close(self) -> None:
        self.lib.edgelearn_close()
