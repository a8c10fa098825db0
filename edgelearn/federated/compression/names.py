"""Compressors by name."""

from __future__ import annotations

import re

from edgelearn.errors import UsageError

from ..compressor import Compressor, NoCompression
from .feedback import ErrorFeedback
from .int8 import Int8
from .signs import Signs
from .top_k import TopK

_VALUES = {None: NoCompression, "int8": Int8, "sign": Signs}
_TOP_K = re.compile(
    r"topk:(?P<fraction>[\d.]*\d(e-\d+)?)(\+(?P<values>int8|sign))?(\+warmup:(?P<rounds>\d{1,9}))?(?P<ahead>\+ahead)?"
)


def make_compressor(name: str) -> Compressor:
    """Return a compressor by name: `"float32"`, `"int8"`, `"topk:0.01"` (the largest hundredth of the entries),
    `"topk:0.01+int8"` or `"topk:0.15+sign"` (a sign for each, with a mean size for each array). Top-k may have a
    warm-up, here with stages of five rounds, `"topk:0.01+int8+warmup:5"`, and clients that train ahead, from what they
    received plus what they left out, `"topk:0.01+int8+warmup:5+ahead"`.

    Those with top-k have error feedback. int8 has none, since its errors are 0 on average.

    Raises UsageError for another name.
    """
    if name == "float32":
        return NoCompression()
    if name == "int8":
        return Int8()
    if found := _TOP_K.fullmatch(name):
        values = _VALUES[found["values"]]()
        return ErrorFeedback(TopK(float(found["fraction"]), values, int(found["rounds"] or 0)), bool(found["ahead"]))
    raise UsageError(
        f"'{name}' is no compression: choose float32, int8, topk:0.01, topk:0.01+int8, topk:0.15+sign, "
        "topk:0.01+int8+warmup:5 or topk:0.01+int8+warmup:5+ahead."
    )
