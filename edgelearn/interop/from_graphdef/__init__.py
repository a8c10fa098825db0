"""Frozen TensorFlow graphs (GraphDef), whole or between named tensors, become trainable networks."""

from ..formats import GraphReader, graph_format, register
from .handlers import HANDLERS, NEAREST
from .reader import parse, read

__all__ = ["parse", "read"]

register(graph_format("TensorFlow GraphDef", (".pb",), b"", GraphReader(read, HANDLERS, NEAREST)))
