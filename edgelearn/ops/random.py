"""Random numbers from a counter, the same on the host and on every device; and dropout, whose mask is not stored: it is
drawn again wherever it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from edgelearn.errors import ShapeError

from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter, layer_code
from .target import Target, emit_copy
from .tensor import BLOCK, Shape, Tensor, ceil_div

FEW_ROUNDS = 7  # the fewest with which the authors' tests find nothing: kernels/include/philox.h


def uniform(name: str, shape: Shape, seed: int, step: int, first: int = 0) -> np.ndarray:
    """The numbers of [0, 1), multiples of 2**-24, that kernels draw for a tensor.

    Arguments:
    - `name`: of the layer or the tensor.
    - `shape`: (examples, ..., channels).
    - `first`: place of the first example in the mini-batch (default 0).
    """
    return (_drawn(name, shape, seed, step, first) >> 8) * 2.0**-24


def rounding_numbers(name: str, shape: Shape, seed: int, step: int, first: int = 0) -> np.ndarray:
    """The numbers of (0, 1), odd multiples of 2**-17, by which stochastic rounding decides for a tensor: a value is
    rounded up with a probability that is off by 2**-17 at most. Arguments as of `uniform`."""
    return _drawn(name, shape, seed, step, first, values=8, rounds=FEW_ROUNDS) * 2.0**-16 + 2.0**-17


def _drawn(name: str, shape: Shape, seed: int, step: int, first: int, values: int = 4, rounds: int = 10) -> np.ndarray:
    """Random bits for each value of a tensor. The four words of a counter serve `values` of them, 4 or 8."""
    channels = ceil_div(shape[-1], BLOCK) * BLOCK
    counter = np.zeros((shape[0], prod(shape[1:-1]) * channels // values, 4), np.uint32)
    counter[..., 0] = np.arange(counter.shape[1])
    counter[..., 1] = np.arange(first, first + shape[0])[:, None]
    counter[..., 2:] = layer_code(name), step
    bits = philox(counter, seed, rounds).astype("<u4").view(f"<u{16 // values}")
    return bits.reshape(*shape[:-1], channels)[..., : shape[-1]]


def philox(counter: np.ndarray, seed: int, rounds: int = 10) -> np.ndarray:
    """Philox4x32 (Salmon et al. 2011): four random uint32 for each counter (..., 4), under a key of 64 bits."""
    x, y, z, w = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    low, word = seed & 0xFFFFFFFF, np.uint64(0xFFFFFFFF)
    high = seed >> 32
    for _ in range(rounds):
        a, b = x * np.uint64(0xD2511F53), z * np.uint64(0xCD9E8D57)
        x, y = (b >> np.uint64(32)) ^ y ^ np.uint64(low), b & word
        z, w = (a >> np.uint64(32)) ^ w ^ np.uint64(high), a & word
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([x, y, z, w], -1).astype(np.uint32)


@dataclass(frozen=True)
class Dropout(Op):
    """In training each value becomes 0 with probability `rate`, and is divided by 1 - rate otherwise (Srivastava et al.
    2014); else values pass unchanged.

    The mask is a function of the plan's seed, the step, the layer's name, the example's place in its mini-batch and the
    value's place in the example: it depends neither on micro-batches nor on the device. Raises ShapeError for a rate
    outside [0, 1).
    """

    rate: float = 0.5

    random = True
    has_values = True

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ShapeError(f"The rate of Dropout is at least 0 and below 1, not {self.rate}.")

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def _drawn(self, shape: Shape) -> Shape:
        """Shape of the random numbers for an example of `shape`."""
        return shape

    def factors(self, layer: str, shape: Shape, examples: int, seed: int, step: int, first: int = 0) -> np.ndarray:
        """The factors of examples `first`, `first` + 1, ... of a mini-batch in training: (examples, *shape), where axes
        of equal factors have size 1."""
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
            emit_copy(e, x, Target(y))
        else:
            self._emit(e, x, Target(y))

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        if e.training is None:
            emit_copy(e, dy, only(targets))
        else:
            self._emit(e, dy, only(targets))

    def _emit(self, e: Emitter, x: Tensor, target: Target) -> None:
        groups, count = e.bands(x.rows, x.blocks)
        drawn, control = prod(self._drawn(x.shape[1:])[:-1]), e.training
        assert control is not None
        e.launch(
            "dropout.cl", "dropout", (groups, x.blocks), x.read, control.scalars.read, control.counters.read,
            x.rows, count, x.images, drawn, layer_code(e.layer), float(self.rate), 1 / (1 - self.rate),
            *target.arguments, whole=True, **target.macros,
        )  # fmt: skip


@dataclass(frozen=True)
class SpatialDropout2D(Dropout):
    """Dropout of whole channels of (height, width, channels): neighbouring pixels are alike (Tompson et al. 2015)."""

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"SpatialDropout2D takes (height, width, channels), not {shape}.")
        return shape

    def _drawn(self, shape: Shape) -> Shape:
        return (1, 1, shape[-1])
