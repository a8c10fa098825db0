"""From another framework's graph to a network: what all formats share.

A format has two parts: a function that reads a file into a `ForeignGraph`, and a table of handlers, one function an
operator. `translate` calls them in turn.

>>> def relu(b, op, x):
...     return arithmetic.activation(b, x, ReLU())
>>> HANDLERS = {"Relu": relu}
>>> translate(read_graph(path), HANDLERS).model_file()
"""

from . import arithmetic, linear, shapes, tensorflow, windows
from .builder import Builder, check_size
from .builder import filled as filled
from .dilation import fuse_dilated as fuse_dilated
from .graph import ForeignGraph, Operator, Quantization, TensorInfo
from .problems import Problem
from .translate import Translation, translate
from .value import Value

__all__ = [
    "Builder", "ForeignGraph", "Operator", "Problem", "Quantization", "TensorInfo", "Translation", "Value",
    "arithmetic", "check_size", "linear", "shapes", "tensorflow", "translate", "windows",
]  # fmt: skip
