"""The table of formats that models are written in: `write_model` finds one by the suffix.

A format is one file with one `register_writer` call:

>>> register_writer(Writer("TFLite", (".tflite",), write, ("int8",)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

from .model_file import ModelFile
from .table import Table


@dataclass(frozen=True)
class Written:
    """A written file: its size, types and the layers left in float32.

    Arguments:
    - `types`: bytes of the weights and other constants by type, such as {"int8": 21910, "int32": 160}.
    - `float32`: layers that integers were asked for and that stay float32, with the reason (default none).
    - `path`, `format`, `bytes`: the file or folder, its format and its size; `write_model` fills them in.
    """

    types: Mapping[str, int]
    float32: Mapping[str, str] = field(default_factory=dict)
    path: Path = Path()
    format: str = ""
    bytes: int = 0

    def __str__(self) -> str:
        types = ", ".join(f"{kind} {count:,}" for kind, count in self.types.items())
        lines = [f"{self.path}: {self.format}, {self.bytes:,} bytes; weights and constants: {types}"]
        return "\n".join(lines + [f"float32: {layer}, because {reason}" for layer, reason in self.float32.items()])


def constant_bytes(arrays: Iterable[np.ndarray | None]) -> dict[str, int]:
    """Bytes of arrays by type, most first."""
    found: Counter[str] = Counter()
    for array in arrays:
        if array is not None:
            found[str(array.dtype)] += array.nbytes
    return dict(found.most_common())


def to_float16(name: str, array: np.ndarray) -> np.ndarray:
    """The weight `name` in float16, rounded to nearest even. Raises FormatError for a value that float16 can't hold."""
    largest, limit = float(np.abs(array).max(initial=0)), float(np.finfo(np.float16).max)
    if largest > limit:
        raise FormatError(f"'{name}' has {largest:.3g}, but float16 ends at {limit:.0f}: write it in float32.")
    return array.astype(np.float16)


@dataclass(frozen=True)
class Writer:
    """A format that models are written in.

    Arguments:
    - `name`: what users call it.
    - `suffixes`: ends of file names, in lower case, such as (".tflite",).
    - `write`: `write(path, file, **options)` writes a ModelFile, and may return `Written`. Raises FormatError if the
      format can't hold it.
    - `options`: names of the options that `write` takes, such as "int8" (default none).
    """

    name: str
    suffixes: tuple[str, ...]
    write: Callable[..., Written | None]
    options: tuple[str, ...] = ()

    @property
    def function(self) -> Callable:
        """As of a table's entry."""
        return self.write


_writers: Table[Writer] = Table()


def register_writer(writer: Writer) -> Writer:
    """Add a writer to the table. Raises ExtensionError if another one has its name."""
    return _writers.add(writer)


def find_writer(path: str | Path) -> Writer:
    """Return the writer of a format by the file's suffix. Raises FormatError for an unknown one."""
    for writer in _writers:
        if Path(path).name.lower().endswith(writer.suffixes):
            return writer
    known = "; ".join(f"{w.name} ({', '.join(w.suffixes)})" for w in _writers)
    raise FormatError(f"{path}: the suffix names no format that is written. Known: {known}.")


def write_model(path: str | Path, file: ModelFile, **options: Any) -> Written:
    """Write a model in the format that the suffix of `path` names. Return what was written.

    Arguments:
    - `path`: the file to write; a folder for formats with several files.
    - `file`: the model.
    - `options`: of the format, such as `int8=True`; those that are None or False count as not given.

    Raises FormatError for an unknown suffix or option, for a model that the format can't hold, or if a package is
    missing; RunError if the file can't be written.
    """
    writer, given = find_writer(path), {k: v for k, v in options.items() if v is not None and v is not False}
    if unknown := sorted(set(given) - set(writer.options)):
        takes = f"It takes {', '.join(writer.options)}." if writer.options else "It takes none."
        raise FormatError(f"{path}: {writer.name} has no option '{unknown[0]}'. {takes}")
    path = Path(path)
    try:
        written = writer.write(path, file, **given) or Written(constant_bytes(file.weights.values()))
    except ModuleNotFoundError as error:
        raise FormatError(
            f"{path}: to write {writer.name}, install the Python package '{error.name}': pip install {error.name}."
        ) from None
    size = sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())
    return replace(written, path=path, format=writer.name, bytes=size)
