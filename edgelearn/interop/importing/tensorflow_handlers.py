"""Handlers of operators that take the same inputs in TFLite files and in TensorFlow graphs."""

from __future__ import annotations

from . import arithmetic, shapes, tensorflow
from .builder import Builder
from .graph import Operator
from .tensorflow import Operand, integers, known


def add_n(b: Builder, op: Operator, first: Operand, *others: Operand) -> Operand:
    for other in others:
        first = arithmetic.add(b, first, other)
    return first


def expand_dims(b: Builder, op: Operator, x: Operand, axis: Operand) -> Operand:
    return shapes.unsqueeze(b, x, integers(axis, "axis"))


def transpose(b: Builder, op: Operator, x: Operand, order: Operand) -> Operand:
    return shapes.transpose(b, x, integers(order, "order"))


def split_v(b: Builder, op: Operator, x: Operand, sizes: Operand, axis: Operand) -> tuple[Operand, ...]:
    (place,), parts = integers(axis, "axis"), integers(sizes, "sizes")
    if parts.count(-1) == 1:
        parts[parts.index(-1)] = x.shape[place] - sum(parts) - 1
    return shapes.split(b, x, place, parts)


def slices(b: Builder, op: Operator, x: Operand, begin: Operand, size: Operand) -> Operand:
    return tensorflow.slice_sizes(b, x, integers(begin, "begin"), integers(size, "size"))


def pad(b: Builder, op: Operator, x: Operand, sides: Operand, value: Operand | None = None) -> Operand:
    number = 0.0 if value is None else float(known(value, "value").reshape(()))
    return tensorflow.pad(b, x, known(sides, "paddings"), number)


def power(b: Builder, op: Operator, x: Operand, exponent: Operand) -> Operand:
    return arithmetic.power(b, x, float(known(exponent, "exponent").reshape(())))


def shape_of(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.shape_of(x)


def fill(b: Builder, op: Operator, dimensions: Operand, value: Operand) -> Operand:
    return tensorflow.fill(dimensions, value)
