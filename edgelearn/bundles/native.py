"""Bundles compiled on this machine and called from Python, to try them out and to time them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_double, c_float, c_size_t, c_void_p
from pathlib import Path

import numpy as np

from edgelearn.display import Displayed
from edgelearn.errors import DeviceError, RunError

from .write import RUNTIME

LIBRARY = "model.so"
WARNINGS = ("-std=c99", "-ffp-contract=off", "-Wall", "-Wextra")
COMPILERS = ("cc", "gcc", "clang")


class Options(ctypes.Structure):
    """edgelearn_options."""

    _fields_ = [
        ("weights", c_char_p), ("weights_bytes", c_size_t), ("library", c_char_p), ("device", c_char_p),
        ("cache_folder", c_char_p),
    ]  # fmt: skip


class Result(ctypes.Structure):
    """edgelearn_result."""

    _fields_ = [("loss", c_double), ("correct", c_double)]


def compiler() -> str | None:
    """The path of a C compiler; None if there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def opencl_library() -> str | None:
    """The path of the OpenCL library that PyOpenCL brings; None if it uses the system's."""
    import pyopencl

    own = sorted(Path(pyopencl.__file__).parent.glob(".libs/libOpenCL*"))
    return str(own[0]) if own else None


def compile_library(folder: Path, options: Sequence[str] = ("-O3",), more: Sequence[Path] = ()) -> Path:
    """Compile the bundle in `folder`, all but its example, to a shared library there.

    Arguments:
    - `folder`: the bundle's.
    - `options`: of the compiler.
    - `more`: further C sources.

    Raises DeviceError without a C compiler, or with what the compiler says.
    """
    if (found := compiler()) is None:
        raise DeviceError("Bundles are compiled by a C compiler, and there is none: install gcc or clang.")
    sources = [path for path in sorted(folder.glob("*.c")) if path.name != "main.c"]
    library = folder / LIBRARY
    command = [found, *WARNINGS, *options, "-shared", "-fPIC", "-o", library, *sources, *more, "-lm", "-ldl"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise DeviceError(f"{found} did not compile {folder}:\n{done.stderr}")
    return library


class NativeBundle(Displayed):
    """A bundle that runs in this process. One at a time can be open.

    >>> el.bundle(model, "small_c", batch_size=8, target="c")
    >>> with el.bundles.NativeBundle("small_c") as native:
    ...     loss, correct = native.train_step(x, y, 0.01)

    Arguments:
    - `folder`: the bundle's.
    - `device`: part of "PLATFORM / DEVICE", for bundles that use OpenCL (default: the first that suits).
    - `options`: of the C compiler (default "-O3").

    Raises DeviceError if it can't be compiled or opened, saying why.
    """

    def __init__(self, folder: str | Path, device: str = "", options: Sequence[str] = ("-O3",)) -> None:
        self.folder = Path(folder)
        self._functions = ctypes.CDLL(str(compile_library(self.folder, options)))
        self._functions.edgelearn_error.restype = self._functions.edgelearn_detail.restype = c_char_p
        self._functions.edgelearn_output_size.restype = c_size_t
        weights = (self.folder / "model.weights").read_bytes()
        library = opencl_library() if (self.folder / "opencl.h").exists() else None
        texts = (text.encode() if text else None for text in (library, device, None))
        self._call("open", byref(Options(weights, len(weights), *texts)))

    @property
    def library(self) -> ctypes.CDLL:
        """The compiled bundle."""
        return self._functions

    @property
    def headline(self) -> str:
        return f"in {self.folder}"

    def __enter__(self) -> NativeBundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *arguments: object) -> None:
        functions = self._functions
        if code := getattr(functions, f"edgelearn_{name}")(*arguments):
            said = [functions.edgelearn_error(code), functions.edgelearn_detail()]
            raise DeviceError(f"edgelearn_{name} of {self.folder}: {'; '.join(text.decode() for text in said)}.")

    def train_step(self, x: np.ndarray, y: np.ndarray, rate: float) -> tuple[float, float]:
        """Run one update. Returns (mean loss, number of right answers), both from before the update.

        Arguments:
        - `x`: float32 (n, ...), a mini-batch of a size that the bundle takes.
        - `y`: class numbers (n,), or float values if the loss takes such.
        - `rate`: learning rate.

        Raises DeviceError for what the bundle's function refuses.
        """
        x = np.ascontiguousarray(x, np.float32)
        y = np.ascontiguousarray(y, np.float32 if np.asarray(y).dtype.kind == "f" else np.int32)
        result, pointers = Result(), (x.ctypes.data_as(c_void_p), y.ctypes.data_as(c_void_p))
        self._call("train_step", *pointers, len(x), c_float(rate), byref(result))
        return result.loss, result.correct

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the network's output of each example, float32 (n, numbers of an output)."""
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty((len(x), self._functions.edgelearn_output_size()), np.float32)
        self._call("predict", x.ctypes.data_as(c_void_p), len(x), y.ctypes.data_as(c_void_p))
        return y

    def close(self) -> None:
        """Give its memory back."""
        self._functions.edgelearn_close()


FOLDER, PROGRAM = "client", "client"  # in the bundle's folder, and in that one


def write_client(bundle: str | Path) -> Path:
    """Write the client's sources into the folder `client` of a bundle for target opencl or c; returns that folder.

    Raises RunError if they can't be written.
    """
    folder = Path(bundle) / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        for source in sorted((RUNTIME / FOLDER).iterdir()):
            shutil.copyfile(source, folder / source.name)
    except OSError as error:
        raise RunError(f"The client can't be written to {folder} ({error.strerror}): name another folder.") from None
    return folder


def compile_client(bundle: str | Path, options: Sequence[str] = ("-O3",)) -> Path:
    """Compile the client of a bundle and return the program's path.

    Arguments:
    - `bundle`: folder of a bundle that has a client.
    - `options`: of the compiler.

    Raises DeviceError without a C compiler, or with what the compiler says.
    """
    if (found := compiler()) is None:
        raise DeviceError("Clients are compiled by a C compiler, and there is none: install gcc or clang.")
    folder = Path(bundle) / FOLDER
    sources = [*sorted(folder.glob("*.c")), *(p for p in sorted(folder.parent.glob("*.c")) if p.name != "main.c")]
    program = folder / PROGRAM
    command = [found, *WARNINGS, *options, "-I", folder.parent, "-o", program, *sources, "-lm", "-ldl"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise DeviceError(f"{found} did not compile {folder}:\n{done.stderr}")
    return program
