"""ONNX operators that move values, or compute constants."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import UnsupportedError

from ..importing import Builder, Operator, Quantization, Value, arithmetic, check_size, filled, shapes, windows
from .arguments import Operand, Pair, integers, known


def concat(b: Builder, op: Operator, *values: Operand) -> Operand:
    return shapes.concatenate(b, values, op.attributes.get("axis", 1))


def reshape(b: Builder, op: Operator, x: Operand, shape: Operand | None = None) -> Operand:
    wanted = list(op.attributes["shape"]) if shape is None else integers(shape)
    if not op.attributes.get("allowzero", 0):
        wanted = [x.shape[axis] if n == 0 else n for axis, n in enumerate(wanted)]
    return shapes.reshape(b, x, wanted)


def flatten(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes.get("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return shapes.reshape(b, x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))


def transpose(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.transpose(b, x, op.attributes.get("perm") or range(len(x.shape))[::-1])


def squeeze(b: Builder, op: Operator, x: Operand, axes: Operand | None = None) -> Operand:
    return shapes.squeeze(b, x, op.attributes.get("axes") if axes is None else integers(axes))


def unsqueeze(b: Builder, op: Operator, x: Operand, axes: Operand | None = None) -> Operand:
    return shapes.unsqueeze(b, x, op.attributes["axes"] if axes is None else integers(axes))


def slices(
    b: Builder, op: Operator, x: Operand, starts: Operand | None = None, ends: Operand | None = None,
    axes: Operand | None = None, steps: Operand | None = None,
) -> Operand:  # fmt: skip
    begin = op.attributes["starts"] if starts is None else integers(starts)
    end = op.attributes["ends"] if ends is None else integers(ends)
    where = op.attributes.get("axes") if axes is None else integers(axes)
    step = [1] * len(begin) if steps is None else integers(steps)
    for axis, first, last, by in zip(where or range(len(begin)), begin, end, step, strict=True):
        if by == 0:
            raise UnsupportedError("A slice with step 0.")
        last = None if by < 0 and last < -x.shape[axis] else last  # in front of the first
        x = shapes.slice_axis(b, x, axis, first, last, by)
    return x


def split(b: Builder, op: Operator, x: Operand, sizes: Operand | None = None) -> tuple[Operand, ...]:
    axis = op.attributes.get("axis", 0)
    parts = op.attributes.get("split") if sizes is None else integers(sizes)
    if not parts:
        count, n = op.attributes.get("num_outputs", len(op.outputs)), x.shape[axis]
        size = -(-n // count)
        parts = [size] * (n // size) + ([n % size] if n % size else [])
    return shapes.split(b, x, axis, parts)


def gather(b: Builder, op: Operator, x: Operand, indices: Operand) -> Operand:
    return shapes.gather(b, x, indices, op.attributes.get("axis", 0))


def pad(
    b: Builder, op: Operator, x: Operand, pads: Operand | None = None, value: Operand | None = None,
    axes: Operand | None = None,
) -> Operand:  # fmt: skip
    sizes = op.attributes.get("pads", op.attributes.get("paddings")) if pads is None else integers(pads)
    number = op.attributes.get("value", 0.0) if value is None else float(known(value, "value").reshape(()))
    rank = len(x.shape)
    where = range(rank) if axes is None else [axis % rank for axis in integers(axes)]
    sides: list[Pair] = [(0, 0)] * rank
    for n, axis in enumerate(where):
        sides[axis] = (int(sizes[n]), int(sizes[n + len(where)]))
    mode = op.attributes.get("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise UnsupportedError(f"mode='{mode}'.", "constant, edge or reflect.")
    return windows.pad(b, x, sides, number, mode)


def cast(b: Builder, op: Operator, x: Operand) -> Operand:
    import onnx

    kind = onnx.helper.tensor_dtype_to_np_dtype(op.attributes["to"])
    if isinstance(x, np.ndarray):
        return x.astype(kind)
    return arithmetic.as_type(b, x, kind.name)


def constant(b: Builder, op: Operator) -> Operand:
    for name, kind in (("value", None), ("value_float", np.float32), ("value_floats", np.float32),
                       ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if name in op.attributes:
            return np.asarray(op.attributes[name], kind)
    raise UnsupportedError("A constant that is no number.")


def constant_of_shape(b: Builder, op: Operator, shape: Operand) -> Operand:
    value = np.asarray(op.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    return filled(tuple(integers(shape)), value[0])


def shape_of(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.shape_of(x)[op.attributes.get("start", 0) : op.attributes.get("end")]


def arange(b: Builder, op: Operator, start: Operand, limit: Operand, delta: Operand) -> Operand:
    first, last, step = (known(x, "limit").item() for x in (start, limit, delta))
    check_size((int(max((last - first) // step, 0)),))
    return np.arange(first, last, step)


def expand(b: Builder, op: Operator, x: Operand, shape: Operand) -> Operand:
    return shapes.expand(b, x, integers(shape))


def dequantize(b: Builder, op: Operator, x: Operand, scale: np.ndarray, zero: np.ndarray | None = None) -> Operand:
    """Constants become numbers again; values already are."""
    if isinstance(x, Value):
        return x
    axis = op.attributes.get("axis", 1) % max(x.ndim, 1)
    shape = [-1 if n == axis else 1 for n in range(x.ndim)] if scale.size > 1 else []
    offset = 0 if zero is None else zero.astype(np.int64).reshape(shape)
    return ((x.astype(np.int64) - offset) * scale.reshape(shape)).astype(np.float32)


def quantize(b: Builder, op: Operator, x: Operand, scale: np.ndarray, zero: np.ndarray | None = None) -> Operand:
    if isinstance(x, np.ndarray):
        raise UnsupportedError("A constant is quantized.", "Constants that are integers in the file.")
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    quantization = Quantization(scale.reshape(-1), zero.reshape(-1), dtype=str(zero.dtype))
    return b.saturated(x, op.outputs[0], quantization)


def depth_to_space(b: Builder, op: Operator, x: Value) -> Operand:
    n, c, h, w = x.shape
    s = op.attributes["blocksize"]
    if op.attributes.get("mode", "DCR") == "DCR":
        y = shapes.transpose(b, shapes.reshape(b, x, (n, s, s, c // s**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = shapes.transpose(b, shapes.reshape(b, x, (n, c // s**2, s, s, h, w)), (0, 1, 4, 2, 5, 3))
    return shapes.reshape(b, y, (n, c // s**2, h * s, w * s))


def space_to_depth(b: Builder, op: Operator, x: Value) -> Operand:
    n, c, h, w = x.shape
    s = op.attributes["blocksize"]
    y = shapes.transpose(b, shapes.reshape(b, x, (n, c, h // s, s, w // s, s)), (0, 3, 5, 1, 2, 4))
    return shapes.reshape(b, y, (n, c * s * s, h // s, w // s))
