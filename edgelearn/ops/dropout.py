"""Dropout whose mask is drawn anew wherever it is needed, from a counter."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from zlib import crc32

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op
from .copy import emit_copy
from .emit import Emitter, GradientTarget
from .tensor import BLOCK, Shape, Tensor, ceil_div


@dataclass(frozen=True)
class Dropout(Op):
    """In training each value is zero with probability `rate`, and divided by 1 - rate otherwise (Srivastava et al.
    2014); elsewhere values pass unchanged. Which ones is a function of the plan's seed, the step, the layer's name,
    the example's place in its mini-batch and the value's place in the example: micro-batches and devices don't matter.
    """

    rate: float = 0.5

    random = True

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ShapeError(f"The rate of Dropout is at least 0 and below 1, not {self.rate}.")

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def _drawn(self, shape: Shape) -> Shape:
        """The shape of what is drawn for an example of `shape`."""
        return shape

    def factors(self, layer: str, shape: Shape, examples: int, seed: int, step: int, first: int = 0) -> np.ndarray:
        """What training multiplies examples `first`, `first` + 1, ... of a mini-batch with: (examples, *shape), or 1
        instead of sizes along which it is the same."""
        drawn = uniform(layer, (examples, *self._drawn(shape)), seed, step, first)
        return (drawn >= np.float32(self.rate)) / (1 - self.rate)

    def reference_forward(
        self, inputs: list[np.ndarray], weights: Arrays, factors: np.ndarray | float = 1.0
    ) -> np.ndarray:
        return inputs[0] * factors

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray, factors: np.ndarray | float = 1.0
    ) -> Gradients:
        return [dy * factors], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        (x,) = inputs
        if e.training is None:
            emit_copy(e, x, GradientTarget(y))
        else:
            self._emit(e, x, GradientTarget(y))

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: list[GradientTarget | None]
    ) -> None:
        self._emit(e, dy, targets[0])

    def _emit(self, e: Emitter, x: Tensor, target: GradientTarget) -> None:
        groups, count = e.bands(x.rows, x.blocks)
        drawn = prod(self._drawn(x.shape[1:])[:-1])
        e.launch(
            "dropout.cl", "dropout", (groups, x.blocks), x.read, e.training.scalars.read, e.training.counters.read,
            x.rows, count, x.images, drawn, layer_code(e.layer), float(self.rate), 1 / (1 - self.rate),
            *target.arguments, whole=True, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class SpatialDropout2D(Dropout):
    """Dropout of whole channels of (height, width, channels): pixels beside each other hold much the same, so that
    values dropped one by one would be known from their neighbours (Tompson et al. 2015)."""

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"SpatialDropout2D takes (height, width, channels), not {shape}.")
        return shape

    def _drawn(self, shape: Shape) -> Shape:
        return (1, 1, shape[-1])


def uniform(name: str, shape: Shape, seed: int, step: int, first: int = 0) -> np.ndarray:
    """The numbers of [0, 1) that kernels draw for a tensor of this name and shape (examples, ..., channels), whose
    first example is number `first` of the mini-batch: multiples of 2**-24."""
    words = ceil_div(shape[-1], BLOCK) * BLOCK
    counter = np.zeros((shape[0], prod(shape[1:-1]) * words // 4, 4), np.uint32)
    counter[..., 0] = np.arange(counter.shape[1])
    counter[..., 1] = np.arange(first, first + shape[0])[:, None]
    counter[..., 2:] = layer_code(name), step
    return (philox(counter, seed).reshape(*shape[:-1], words)[..., : shape[-1]] >> 8) * 2.0**-24


def layer_code(layer: str) -> int:
    """31 bits that stand for a layer's name."""
    return crc32(layer.encode()) & 0x7FFFFFFF


def philox(counter: np.ndarray, seed: int) -> np.ndarray:
    """Philox4x32-10 (Salmon et al. 2011): four random uint32 for each counter (..., 4), under a key of 64 bits."""
    x, y, z, w = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    low, word = seed & 0xFFFFFFFF, np.uint64(0xFFFFFFFF)
    high = seed >> 32
    for _ in range(10):
        a, b = x * np.uint64(0xD2511F53), z * np.uint64(0xCD9E8D57)
        x, y = (b >> np.uint64(32)) ^ y ^ np.uint64(low), b & word
        z, w = (a >> np.uint64(32)) ^ w ^ np.uint64(high), a & word
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([x, y, z, w], -1).astype(np.uint32)
