"""Pad: more coordinates before and behind those of any axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .gather import Axis, emit_gather
from .target import Target
from .tensor import Shape, Tensor
from .window import Pair

MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True)
class Pad(Op):
    """Pads any axes of an example, as keras.ops.pad.

    Arguments:
    - `padding`: (before, after) for each axis.
    - `mode`: `"constant"` (default); `"edge"`, the first and last value; `"reflect"`, mirrored at these; or
      `"symmetric"`, mirrored at the edges, so that the first and last value appear twice.
    - `value`: what a constant padding holds (default 0).

    Raises ShapeError for negative padding, or more than there is to mirror.
    """

    padding: tuple[Pair, ...]
    mode: str = "constant"
    value: float = 0.0

    @property
    def selects(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True unless it adds another number than 0."""
        return self.value == 0 or self.mode != "constant"

    def output_shape(self, shape: Shape) -> Shape:
        if self.mode not in MODES:
            raise ShapeError(f"The mode of Pad is one of {', '.join(MODES)}, not '{self.mode}'.")
        if len(self.padding) != len(shape) or any(len(p) != 2 or min(p) < 0 for p in self.padding):
            raise ShapeError(f"Pad takes (before, after), 0 or more, for each axis of {shape}, not {self.padding}.")
        most = [n if self.mode == "symmetric" else n - 1 for n in shape]
        if self.mode in ("reflect", "symmetric") and any(max(p) > n for p, n in zip(self.padding, most, strict=True)):
            raise ShapeError(f"{self.mode} padding of {shape} is at most {most} by axis, not {self.padding}.")
        return tuple(before + n + after for (before, after), n in zip(self.padding, shape, strict=True))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        more = {"constant_values": self.value} if self.mode == "constant" else {}
        return np.pad(inputs[0], ((0, 0), *self.padding), self.mode, **more)  # type: ignore[call-overload]

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        dx = dy
        for axis, (before, after) in enumerate(self.padding, start=1):
            n, edge = inputs[0].shape[axis], int(self.mode == "reflect")
            dx = np.moveaxis(dx, axis, 0)
            inner = dx[before : before + n].copy()
            if self.mode == "edge":
                inner[0] += dx[:before].sum(0)
                inner[-1] += dx[before + n :].sum(0)
            elif self.mode != "constant":
                inner[edge : edge + before] += dx[:before][::-1]
                inner[n - edge - after : n - edge] += dx[before + n :][::-1]
            dx = np.moveaxis(inner, 0, axis)
        return [dx], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        pieces = [self._pieces(axis, n) for axis, n in enumerate(inputs[0].shape[1:])]
        _emit(e, inputs[0], pieces, Target(y), self.value if self.mode == "constant" else 0.0)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        shape = inputs[0].shape[1:]
        inverse = [self._inverse(axis, n) for axis, n in enumerate(shape)]
        many = [axis for axis, pieces in enumerate(inverse) if self.mode == "edge" and len(pieces) > 1]
        for axis in many[:-1]:  # one after the other, since all combinations would be too many
            sizes = (*dy.shape[: 1 + axis], shape[axis], *dy.shape[2 + axis :])
            inner = e.tensor(f"gradient without padding of axis {axis + 1}", sizes)
            whole = [[Axis.whole(n, other)] for other, n in enumerate(sizes[1:])]
            _emit(e, dy, [*whole[:axis], inverse[axis], *whole[axis + 1 :]], Target(inner), 0.0)
            dy, inverse[axis] = inner, [Axis.whole(shape[axis], axis)]
        _emit(e, dy, inverse, only(targets), 0.0)

    def _pieces(self, axis: int, n: int) -> list[Axis]:
        """The axis itself, and, mirrored, what lies before and after it."""
        (before, after), edge = self.padding[axis], int(self.mode == "reflect")
        size = before + n + after
        pieces = [Axis(size, axis, n, 1, -before)]
        if self.mode == "edge":
            return [Axis(size, axis, n, 1, -before, clamped=True)]
        if self.mode != "constant" and before:
            pieces.append(Axis(size, axis, edge + before, -1, before - 1 + edge, low=edge))
        if self.mode != "constant" and after:
            end = n - edge
            pieces.append(Axis(size, axis, end, -1, before + n + end - 1, low=end - after))
        return pieces

    def _inverse(self, axis: int, n: int) -> list[Axis]:
        """Return the slices of the gradient's axis whose sum is the gradient of the input."""
        (before, after), pieces = self.padding[axis], self._pieces(axis, n)
        if self.mode != "edge":
            return [_inverse(piece, n) for piece in pieces]
        end = before + n
        first = [Axis(n, axis, place + 1, 1, place, low=place) for place in range(before)]
        last = [Axis(n, axis, place + 1, 1, place - n + 1, low=place) for place in range(end, end + after)]
        return [Axis(n, axis, end, 1, before, low=before), *first, *last]


def _inverse(piece: Axis, n: int) -> Axis:
    """For each of `n` coordinates of the source, the one of the result that reads it by `piece`, whose step is 1 or
    -1."""
    low, high = sorted((piece.step * (piece.low - piece.begin), piece.step * (piece.high - 1 - piece.begin)))
    return replace(piece, size=n, begin=-piece.step * piece.begin, low=max(low, 0), high=min(high + 1, piece.size))


def _emit(e: Emitter, x: Tensor, pieces: list[list[Axis]], target: Target, fill: float) -> None:
    """Emit the sum of all combinations of the axes' pieces."""
    for axes in product(*pieces):
        emit_gather(e, x, axes, target, fill=fill)
        target = replace(target, accumulate=True)
