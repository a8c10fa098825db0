"""ONNX files to networks. It needs the package `onnx`, for reading alone: `pip install 'edgelearn[formats]'`."""

from .handlers import HANDLERS, NEAREST
from .read import read_graph

__all__ = ["HANDLERS", "NEAREST", "read_graph"]
