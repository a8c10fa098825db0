"""Attributes and constant inputs of ONNX operators as handlers want them."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops.window import Window

from ..importing import Operator, Value

Operand = Value | np.ndarray
Pair = tuple[int, int]


def as_keras(kernel: np.ndarray) -> np.ndarray:
    """(out, in, height, width) or (out, in, width) as (height, width, in, out)."""
    kernel = kernel[:, :, None] if kernel.ndim == 3 else kernel
    return kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel


def pairs(op: Operator, axes: int, *names: str) -> list[Pair]:
    """Attributes with a number for each of `axes` spatial axes, as (height, width); default 1."""
    found = []
    for name in names:
        values = [int(n) for n in op.attributes.get(name) or [1] * axes]
        if len(values) != axes or axes not in (1, 2):
            raise UnsupportedError(f"{axes} spatial axes, {name}={values}.", "Images (2) and sequences (1).")
        found.append((1, values[0]) if axes == 1 else (values[0], values[1]))
    return found


def padding_of(op: Operator, x: Value, size: Pair, strides: Pair, dilation: Pair = (1, 1)) -> str | tuple[Pair, Pair]:
    """The padding of windows of `size` over the image or the sequence `x`."""
    axes = x.rank - 2
    automatic = op.attributes.get("auto_pad", "NOTSET")
    if automatic == "SAME_UPPER":
        return "same"
    if automatic == "VALID":
        return "valid"
    if automatic == "SAME_LOWER":
        shape = (1, *x.shape[2:], x.shape[1]) if axes == 1 else (*x.shape[2:], x.shape[1])
        (top, bottom), (left, right) = Window.of(shape, size, strides, "same", dilation).padding
        return (bottom, top), (right, left)
    if automatic != "NOTSET":
        raise UnsupportedError(f"auto_pad='{automatic}'.", "SAME_UPPER, SAME_LOWER, VALID or pads.")
    pads = [int(n) for n in op.attributes.get("pads") or [0] * 2 * axes]
    if axes == 1:
        return (0, 0), (pads[0], pads[1])
    return (pads[0], pads[2]), (pads[1], pads[3])


def known(x: Operand | None, what: str) -> np.ndarray:
    if not isinstance(x, np.ndarray):
        raise UnsupportedError(f"Its {what} is computed, or missing.", "A constant.")
    return x


def integers(x: Operand) -> list[int]:
    return [int(n) for n in known(x, "shape").reshape(-1)]
