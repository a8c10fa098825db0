"""TensorFlow graphs become trainable networks: frozen ones (GraphDef), whole or in part, and SavedModels."""

from ..formats import GraphReader, graph_format, register
from . import saved_model
from .handlers import HANDLERS, NEAREST
from .reader import parse, read

__all__ = ["parse", "read", "saved_model"]

_saved = GraphReader(saved_model.read, HANDLERS, NEAREST)
register(graph_format("TensorFlow SavedModel", (saved_model.FILE,), b"", _saved))  # before the other .pb
register(graph_format("TensorFlow GraphDef", (".pb",), b"", GraphReader(read, HANDLERS, NEAREST)))
