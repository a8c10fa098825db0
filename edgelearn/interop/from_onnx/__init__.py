"""ONNX files to networks. It needs the package `onnx`, for reading alone: `pip install 'edgelearn[formats]'`."""

from .handlers import HANDLERS as HANDLERS
from .handlers import NEAREST as NEAREST
from .read import read_graph as read_graph
