"""The tables of file formats: `read_model` finds a file's format by its suffix or its first bytes, `write_model` by
the suffix.

A format is one file with one `register` call, and one of `register_writer` if it is written:

>>> register(Format("Keras HDF5", (".h5",), b"\\x89HDF", weights_of_a_network(read_weights)))
>>> register_writer(Writer("TFLite", (".tflite",), write))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelearn.errors import FormatError
from edgelearn.graph import Network

from .model_file import ModelFile
from .weights import Weights

Write = Callable[..., None]  # (path, ModelFile, **options)
Reader = Callable[[Path, Network | None, tuple[str, ...]], ModelFile]


@dataclass(frozen=True)
class Format:
    """A format of model or weight files.

    Arguments:
    - `name`: what users call it.
    - `suffixes`: ends of file names, in lower case, such as (".h5", ".hdf5").
    - `signature`: first bytes of every such file; empty if it has none.
    - `read`: `read(path, network, skip)` returns a ModelFile. `network` is None if the caller has none; layers named in
      `skip` are left out. Raises FormatError naming the file.
    """

    name: str
    suffixes: tuple[str, ...]
    signature: bytes
    read: Reader


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
    write: Write
    options: tuple[str, ...] = ()


_formats: dict[str, Format] = {}
_writers: dict[str, Writer] = {}


def register(file_format: Format) -> Format:
    """Add a format to the table; it replaces one of the same name."""
    _formats[file_format.name] = file_format
    return file_format


def find_format(path: str | Path) -> Format:
    """Return the format of a file, by its suffix, else by its first bytes. Raises FormatError for an unknown one."""
    path = Path(path)
    for file_format in _formats.values():
        if path.name.lower().endswith(file_format.suffixes):
            return file_format
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise FormatError(
            f"{path} can't be read ({error.strerror}). Give the path of a model or weight file."
        ) from None
    for file_format in _formats.values():
        if file_format.signature and start.startswith(file_format.signature):
            return file_format
    known = "; ".join(f"{f.name} ({', '.join(f.suffixes)})" for f in _formats.values())
    raise FormatError(f"{path} has no known format. Known: {known}.")


def read_model(path: str | Path, network: Network | None = None, skip: tuple[str, ...] = ()) -> ModelFile:
    """Read a model, or weights of `network`, from a file of any registered format.

    Arguments:
    - `path`: the file.
    - `network`: the graph that the weights are for; not needed for formats that hold the graph.
    - `skip`: layers whose weights are left out, such as a classifier for other classes.

    Raises FormatError if the file is damaged, of an unknown format or another network, or if a graph is needed.
    """
    return find_format(path).read(Path(path), network, tuple(skip))


def register_writer(writer: Writer) -> Writer:
    """Add a writer to the table; it replaces one of the same name."""
    _writers[writer.name] = writer
    return writer


def find_writer(path: str | Path) -> Writer:
    """Return the writer of a format by the file's suffix. Raises FormatError for an unknown one."""
    for writer in _writers.values():
        if Path(path).name.lower().endswith(writer.suffixes):
            return writer
    known = "; ".join(f"{w.name} ({', '.join(w.suffixes)})" for w in _writers.values())
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
    writer, given = find_writer(path), {name: value for name, value in options.items() if value not in (None, False)}
    if unknown := sorted(set(given) - set(writer.options)):
        takes = f"It takes {', '.join(writer.options)}." if writer.options else "It takes none."
        raise FormatError(f"{path}: {writer.name} has no option '{unknown[0]}'. {takes}")
    try:
        writer.write(Path(path), file, **given)
    except ModuleNotFoundError as error:
        raise FormatError(
            f"{path}: to write {writer.name}, install the Python package '{error.name}': pip install {error.name}."
        ) from None


def weights_of_a_network(read: Callable[[Path, Network, tuple[str, ...]], Weights]) -> Reader:
    """Make a reader for a format that holds weights alone: it asks the caller for the network."""

    def read_file(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
        if network is None:
            raise FormatError(f"{path} holds weights without a graph: say of which network, with network=….")
        return ModelFile(network, read(path, network, skip))

    return read_file
