"""The table of formats that models are written in: `write_model` finds one by the suffix.

A format is one file with one `register_writer` call:

>>> register_writer(Writer("TFLite", (".tflite",), write, ("int8",)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelearn.errors import FormatError

from .model_file import ModelFile
from .table import Table


@dataclass(frozen=True)
class Writer:
    """A format that models are written in.

    Arguments:
    - `name`: what users call it.
    - `suffixes`: ends of file names, in lower case, such as (".tflite",).
    - `write`: `write(path, file, **options)` writes a ModelFile. Raises FormatError if the format can't hold it.
    - `options`: names of the options that `write` takes, such as "int8" (default none).
    """

    name: str
    suffixes: tuple[str, ...]
    write: Callable[..., None]
    options: tuple[str, ...] = ()


_writers: Table[Writer] = Table()


def register_writer(writer: Writer) -> Writer:
    """Add a writer to the table; it replaces one of the same name."""
    return _writers.add(writer)


def find_writer(path: str | Path) -> Writer:
    """Return the writer of a format by the file's suffix. Raises FormatError for an unknown one."""
    for writer in _writers:
        if Path(path).name.lower().endswith(writer.suffixes):
            return writer
    known = "; ".join(f"{w.name} ({', '.join(w.suffixes)})" for w in _writers)
    raise FormatError(f"{path}: the suffix names no format that is written. Known: {known}.")


def write_model(path: str | Path, file: ModelFile, **options: Any) -> None:
    """Write a model in the format that the suffix of `path` names.

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
    try:
        writer.write(Path(path), file, **given)
    except ModuleNotFoundError as error:
        raise FormatError(
            f"{path}: to write {writer.name}, install the Python package '{error.name}': pip install {error.name}."
        ) from None
