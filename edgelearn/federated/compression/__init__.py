"""Compressed messages: int8 with stochastic rounding, the largest entries, both, and error feedback."""

from .downlink import Copy, Downlink
from .feedback import ErrorFeedback
from .int8 import Int8
from .names import make_compressor
from .top_k import TopK

__all__ = ["Copy", "Downlink", "ErrorFeedback", "Int8", "TopK", "make_compressor"]
