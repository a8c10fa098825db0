"""ONNX files in the table of formats."""

from __future__ import annotations

from .formats import GraphReader, graph_format, register
from .from_onnx import HANDLERS, NEAREST, read_graph

register(graph_format("ONNX", (".onnx",), b"", GraphReader(read_graph, HANDLERS, NEAREST)))
