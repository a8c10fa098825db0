"""Reads a TensorFlow SavedModel: TensorFlow, in a process of its own, freezes it to a GraphDef.

TensorFlow runs a part of the graph when it loads one. So a graph with operators that reach files or Python is refused
before it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from edgelearn.errors import FormatError

from ..importing import ForeignGraph
from .freezer import Freezer
from .reader import parse
from .wire import Message

FILE = "saved_model.pb"
REFUSED = {"EagerPyFunc", "MatchingFiles", "PyFunc", "PyFuncStateless", "ReadFile", "WriteFile"}


def read(path: Path, freezer: Freezer | None = None) -> ForeignGraph:
    """Read the serving signature of a SavedModel.

    Arguments:
    - `path`: its folder, or the file saved_model.pb in it.
    - `freezer`: the process that loads it (default: one for this model).

    Raises FormatError if the folder is no SavedModel, TensorFlow isn't installed or can't load it within limits of time
    and memory, or if its graph reaches files or Python.
    """
    folder = path if path.is_dir() else path.parent
    if not (folder / FILE).is_file():
        raise FormatError(f"{folder} has no {FILE}. Give the folder of a SavedModel.")
    for name, kind in _nodes((folder / FILE).read_bytes(), str(folder / FILE)):
        if kind in REFUSED:
            raise FormatError(f"{folder}: node '{name:.200}' ({kind}) reaches files or Python. Export it without.")
    if find_spec("tensorflow") is None:
        raise FormatError(
            f"{folder} is a SavedModel, which TensorFlow has to freeze: pip install 'edgelearn[tensorflow]', or export "
            f"the model to TFLite, .keras or ONNX."
        )
    with Freezer() if freezer is None else nullcontext(freezer) as process:
        graph = parse(process.freeze(folder), folder)
    return replace(graph, format="TensorFlow SavedModel", name=folder.name)


def _nodes(data: bytes, what: str) -> Iterator[tuple[str, str]]:
    """Name and kind of every node, those of functions included."""
    for meta in _messages(Message(memoryview(data), what), 2):
        for graph in _messages(meta, 2):
            yield from map(_name_and_kind, _messages(graph, 1))
            for library in _messages(graph, 2):
                for function in _messages(library, 1):
                    yield from map(_name_and_kind, _messages(function, 3))


def _messages(message: Message, field: int) -> list[Message]:
    (values,) = message.fields(field)
    return [message.message(value) for value in values]


def _name_and_kind(node: Message) -> tuple[str, str]:
    names, kinds = node.fields(1, 2)
    return (node.text(names[-1]) if names else "", node.text(kinds[-1]) if kinds else "")
