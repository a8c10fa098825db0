"""ATen operators that move values."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import UnsupportedError

from ..importing import Builder, Operator, Value, shapes, windows

Operand = Value | np.ndarray
PADS = {"pad": "constant", "reflection": "reflect", "replication": "edge", "replicate": "edge"}


def cat(b: Builder, op: Operator, *values: Operand) -> Operand:
    return shapes.concatenate(b, values, op.attributes["dim"])


def view(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.reshape(b, x, op.attributes.get("size") or op.attributes["shape"])


def flatten(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.flatten(b, x, op.attributes["start_dim"], op.attributes["end_dim"])


def unflatten(b: Builder, op: Operator, x: Operand) -> Operand:
    axis = op.attributes["dim"] % len(x.shape)
    return shapes.reshape(b, x, (*x.shape[:axis], *op.attributes["sizes"], *x.shape[axis + 1 :]))


def transpose(b: Builder, op: Operator, x: Operand) -> Operand:
    order = list(range(len(x.shape)))
    first, second = op.attributes["dim0"], op.attributes["dim1"]
    order[first], order[second] = order[second], order[first]
    return shapes.transpose(b, x, order)


def permute(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.transpose(b, x, op.attributes["dims"])


def squeeze(b: Builder, op: Operator, x: Operand) -> Operand:
    axes = op.attributes.get("dim")
    axes = (axes,) if isinstance(axes, int) else axes
    return shapes.squeeze(b, x, None if axes is None else [axis for axis in axes if x.shape[axis] == 1])


def unsqueeze(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.unsqueeze(b, x, [op.attributes["dim"]])


def part(b: Builder, op: Operator, x: Operand) -> Operand:
    a = op.attributes
    return shapes.slice_axis(b, x, a["dim"], a["start"], a["end"], a["step"])


def select(b: Builder, op: Operator, x: Operand) -> Operand:
    return shapes.gather(b, x, np.asarray(op.attributes["index"]), op.attributes["dim"])


def narrow(b: Builder, op: Operator, x: Operand) -> Operand:
    a = op.attributes
    return shapes.slice_axis(b, x, a["dim"], a["start"], a["start"] + a["length"])


def chunk(b: Builder, op: Operator, x: Operand) -> tuple[Operand, ...]:
    n = x.shape[op.attributes["dim"]]
    return _parts(b, x, op.attributes["dim"], -(-n // op.attributes["chunks"]))


def split(b: Builder, op: Operator, x: Operand) -> tuple[Operand, ...]:
    sizes = op.attributes.get("split_size", op.attributes.get("split_sizes"))
    if isinstance(sizes, int):
        return _parts(b, x, op.attributes["dim"], sizes)
    return shapes.split(b, x, op.attributes["dim"], sizes)


def pad(b: Builder, op: Operator, x: Operand) -> Operand:
    pads = op.attributes.get("pad", op.attributes.get("padding"))
    given = op.attributes.get("mode") or op.kind.partition("_")[0]
    mode = PADS.get(given, given)
    if mode not in ("constant", "edge", "reflect"):
        raise UnsupportedError(f"mode='{mode}'.", "constant, reflect or replicate.")
    sides = [(pads[2 * n], pads[2 * n + 1]) for n in range(len(pads) // 2)][::-1]
    sides = [(0, 0)] * (len(x.shape) - len(sides)) + sides
    return windows.pad(b, x, sides, float(op.attributes.get("value") or 0), mode)


def pixel_shuffle(b: Builder, op: Operator, x: Value) -> Operand:
    n, c, h, w = x.shape
    s = op.attributes["upscale_factor"]
    y = shapes.reshape(b, x, (n, c // s**2, s, s, h, w))
    return shapes.reshape(b, shapes.transpose(b, y, (0, 1, 4, 2, 5, 3)), (n, c // s**2, h * s, w * s))


def identity(b: Builder, op: Operator, x: Operand, *_: Operand) -> Operand:
    return x


def _parts(b: Builder, x: Operand, axis: int, size: int) -> tuple[Operand, ...]:
    n = x.shape[axis]
    return shapes.split(b, x, axis, [size] * (n // size) + ([n % size] if n % size else []))
