"""SliceChannels and PadChannels: a range of the channels, and zeros around the channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .target import Target
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class SliceChannels(Op):
    """Channels `start` to `start` + `size` - 1. Raises ShapeError if the input doesn't have them."""

    start: int
    size: int

    selects = True

    def output_shape(self, shape: Shape) -> Shape:
        if self.start < 0 or self.size < 1 or self.start + self.size > shape[-1]:
            raise ShapeError(f"{self.size} channels from {self.start} on are not all among the {shape[-1]} there are.")
        return (*shape[:-1], self.size)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return inputs[0][..., self.start : self.start + self.size]

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        dx = np.zeros_like(inputs[0])
        dx[..., self.start : self.start + self.size] = dy
        return [dx], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        _emit_moved(e, inputs[0], self.start, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        _emit_moved(e, dy, -self.start, only(targets))


@dataclass(frozen=True)
class PadChannels(Op):
    """Adds channels of zeros: `before` in front of the input's channels, `after` behind them."""

    before: int = 0
    after: int = 0

    selects = True

    def output_shape(self, shape: Shape) -> Shape:
        if min(self.before, self.after) < 0:
            raise ShapeError(f"PadChannels adds 0 or more channels on each side, not {self.before} and {self.after}.")
        return (*shape[:-1], self.before + shape[-1] + self.after)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        (x,) = inputs
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(self.before, self.after)])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy[..., self.before : self.before + inputs[0].shape[-1]]], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        _emit_moved(e, inputs[0], -self.before, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        _emit_moved(e, dy, self.before, only(targets))


def _emit_moved(e: Emitter, x: Tensor, shift: int, target: Target) -> None:
    """Emit channel c of target = channel c + shift of x, or 0."""
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks)
    e.launch(
        "channels.cl", "move_channels", (groups, y.blocks), x.read, y.rows, count, x.channels, y.channels, shift,
        *target.arguments, whole=True, **target.macros,
    )  # fmt: skip
