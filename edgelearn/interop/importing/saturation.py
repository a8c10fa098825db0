"""Saturation: a clamp that a file has in the range of a quantized tensor alone becomes a layer.

Integers saturate, so converters leave a ReLU or ReLU6 out where the range of the tensor ends in the same places. Most
ranges are calibrated, though: they end where the examples did. The two are told apart by where a range ends, and by
what the values before it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan

import numpy as np

from edgelearn.ops import (
    Abs,
    Add,
    BatchNormalization,
    Bias,
    Clip,
    Exp,
    GroupNormalization,
    HardSigmoid,
    LayerNormalization,
    LinearOp,
    Log,
    LogSoftmax,
    MatMul,
    Multiply,
    Op,
    Reciprocal,
    ReLU,
    Rescaling,
    Rsqrt,
    Scale,
    Sigmoid,
    Softmax,
    Softplus,
    Sqrt,
    Square,
    Subtract,
    Sum,
    Tanh,
)  # fmt: skip

from .graph import Quantization

Range = tuple[float, float]  # the lowest and the highest value
UNIT, POSITIVE = (HardSigmoid, Sigmoid, Softmax), (Abs, Exp, Rsqrt, Softplus, Sqrt, Square)
ANY = (BatchNormalization, Bias, GroupNormalization, LayerNormalization, LinearOp, Log, LogSoftmax, MatMul, Reciprocal,
       Scale, Subtract)  # fmt: skip


def reach(op: Op, inputs: Sequence[Range]) -> Range:
    """Return the range of an op's outputs: infinite, or that of its inputs and 0 for an op that isn't listed here."""
    low, high = min(0.0, *(x[0] for x in inputs)), max(0.0, *(x[1] for x in inputs))
    match op:
        case ReLU():
            return 0.0, high if op.max_value is None else op.max_value
        case Clip():
            return (low if op.min_value is None else op.min_value), (high if op.max_value is None else op.max_value)
        case Tanh():
            return -1.0, 1.0
        case Rescaling():
            ends = sorted(op.scale * end + op.offset for end in inputs[0])
            return ends[0], ends[1]
        case Add():
            return sum(x[0] for x in inputs), sum(x[1] for x in inputs)
        case Multiply():
            (a, b), (c, d) = inputs
            products = [0.0 if isnan(n) else n for n in (a * c, a * d, b * c, b * d)]
            return min(products), max(products)
        case Sum():
            return -inf if low < 0 else 0.0, inf
    if isinstance(op, UNIT):
        return 0.0, 1.0
    if isinstance(op, POSITIVE):
        return 0.0, inf
    return (-inf, inf) if isinstance(op, ANY) else (low, high)


def held(quantization: Quantization) -> Range | None:
    """Return the range of an activation's integers; None for int32 and for several scales, which limit nothing."""
    step, zero = float(quantization.scale[0]), int(quantization.zero_point[0])
    if quantization.scale.size > 1 or quantization.dtype not in ("int8", "uint8", "int16", "uint16") or step <= 0:
        return None
    integers = np.iinfo(quantization.dtype)
    return step * (int(integers.min) - zero), step * (int(integers.max) - zero)


def clamp(values: Range, limits: Range, step: float) -> tuple[Op | None, bool]:
    """Return the clamp that the range of integers stands for, if it does, and whether it cuts values off at all.

    Arguments:
    - `values`: the range of what is computed.
    - `limits`: the range of the integers.
    - `step`: their scale: what lies as near outside is rounded, not cut off.

    It stands for a ReLU if it begins at 0 and values can be negative, for a ReLU6 if it also ends at 6, or ends there
    and no value is negative, and for a Clip if it is from -1 to 1.
    """
    (low, high), is_below, is_above = limits, values[0] < limits[0] - step, values[1] > limits[1] + step
    ends_at_6 = abs(high - 6) < step / 2
    if (is_below and low == 0) or (is_above and ends_at_6 and values[0] >= 0):
        return ReLU(6 if ends_at_6 else high), True
    if (is_below or is_above) and abs(low + 1) < step and abs(high - 1) < step:
        return Clip(-1.0, 1.0), True
    return None, is_below or is_above
