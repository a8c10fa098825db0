"""Compressors by name."""

from __future__ import annotations

from edgelearn.errors import UsageError

from ..compressor import Compressor, NoCompression
from .feedback import ErrorFeedback
from .int8 import Int8
from .top_k import TopK


def make_compressor(name: str) -> Compressor:
    """Return a compressor by name: `"float32"`, `"int8"`, `"topk:0.01"` (the largest hundredth of the entries) or
    `"topk:0.01+int8"`.

    Those with top-k have error feedback. int8 has none, since its errors are 0 on average.

    Raises UsageError for another name.
    """
    if name == "float32":
        return NoCompression()
    if name == "int8":
        return Int8()
    kind, _, rest = name.partition(":")
    fraction, plus, values = rest.partition("+")
    if kind == "topk" and (values == "int8") == bool(plus):
        try:
            return ErrorFeedback(TopK(float(fraction), Int8() if plus else NoCompression()))
        except ValueError:
            pass
    raise UsageError(f"'{name}' is no compression: choose float32, int8, topk:0.01 or topk:0.01+int8.")
