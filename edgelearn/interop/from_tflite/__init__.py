"""TFLite files, float, with weights of 8 bits or of integers throughout, become trainable float32 networks."""

from ..formats import GraphReader, graph_format, register
from .handlers import HANDLERS, NEAREST
from .litert import run
from .reader import parse, read

__all__ = ["parse", "read"]

register(graph_format("TFLite", (".tflite",), b"", GraphReader(read, HANDLERS, NEAREST, run)))
