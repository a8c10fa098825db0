"""Reads a TensorFlow SavedModel: TensorFlow, in a process of its own, freezes it to a GraphDef.

TensorFlow runs a part of the graph when it loads one. So a graph with operators that reach files or Python is refused
before it is loaded.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from edgelearn.errors import FormatError

from ..importing import ForeignGraph
from .reader import parse
from .wire import Message

FILE = "saved_model.pb"
SECONDS = 300.0  # for TensorFlow to load and freeze
REFUSED = {"EagerPyFunc", "MatchingFiles", "PyFunc", "PyFuncStateless", "ReadFile", "WriteFile"}
SCRIPT = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
model = tf.saved_model.load(sys.argv[1])
signatures = model.signatures
if not signatures:
    sys.exit("it has no signature")
name = "serving_default" if "serving_default" in signatures else sorted(signatures)[0]
graph = convert_variables_to_constants_v2(signatures[name]).graph.as_graph_def()
open(sys.argv[2], "wb").write(graph.SerializeToString())
"""


def read(path: Path) -> ForeignGraph:
    """Read the serving signature of a SavedModel; `path` is its folder, or the file saved_model.pb in it.

    Raises FormatError if the folder is no SavedModel, TensorFlow isn't installed or can't load it, or if its graph
    reaches files or Python.
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
    return replace(_frozen(folder), format="TensorFlow SavedModel", name=folder.name)


def _frozen(folder: Path) -> ForeignGraph:
    with tempfile.TemporaryDirectory() as temporary:
        frozen = Path(temporary) / "frozen.pb"
        try:
            command = [sys.executable, "-c", SCRIPT, str(folder), str(frozen)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise FormatError(f"{folder}: TensorFlow found no end within {SECONDS:.0f} seconds.") from None
        if done.returncode or not frozen.is_file():
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise FormatError(f"{folder}: TensorFlow can't load the SavedModel ({reason:.300}). Export it again.")
        return parse(frozen.read_bytes(), folder)


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
