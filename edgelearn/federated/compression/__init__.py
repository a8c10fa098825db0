"""Compressed messages: int8 with stochastic rounding, the largest entries or their signs, and error feedback."""

from .downlink import Copy, Downlink
from .feedback import ErrorFeedback
from .int8 import Int8
from .names import make_compressor
from .signs import Signs
from .top_k import TopK

__all__ = ["Copy", "Downlink", "ErrorFeedback", "Int8", "Signs", "TopK", "make_compressor"]
