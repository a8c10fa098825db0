"""Add and Concatenate, and additive couplings (Dinh et al. 2014, "NICE", arXiv 1410.8516) with the streams they add to.

A sum of floats is rounded, so its inverse is only approximate. Multiples of a power of two, `step`, add up exactly as
long as they stay below 2^24 steps: then the inverse restores the bits (the idea of Hoogeboom et al. 2019, "Integer
discrete flows", arXiv 1905.07376). Gradients ignore the rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import frexp, prod

import numpy as np

from edgelearn.errors import ShapeError

from .arithmetic import BroadcastOperand, Gradient, aligned, broadcast, emit_repeated, emit_summed, reduced
from .base import Arrays, Gradients, Op, Targets, only
from .emit import Emitter
from .shapes import Axis, emit_gather
from .target import Target, emit_copy
from .tensor import LINEAR, Function, Shape, Tensor


@dataclass(frozen=True)
class Add(Op):
    """The sum of two or more tensors. Sizes of 1 are repeated, as in NumPy and Keras."""

    passes_gradient = True

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) < 2:
            raise ShapeError(f"Add takes two or more inputs, not {len(shapes)}.")
        return broadcast("Add", *shapes)

    def flops(self, *shapes: Shape) -> int:
        return (len(shapes) - 1) * prod(self.output_shape(*shapes))

    def takes_halves(self, *shapes: Shape) -> bool:
        return len(set(shapes)) == 1

    def activation_of_integers(self, shapes: Sequence[Shape]) -> Function | None:
        return LINEAR if len(shapes) == 2 and len(set(shapes)) == 1 else None

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        rank = max(x.ndim for x in inputs)
        return reduce(np.add, (aligned(x, rank) for x in inputs))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [reduced(dy, aligned(x, dy.ndim).shape).reshape(x.shape) for x in inputs], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        whole = [x for x in inputs if x.shape == y.shape]
        repeated = [x for x in inputs if x.shape != y.shape]
        started = len(whole) > 1
        if started:
            a, b, *whole = whole
            self.emit_activated(e, a, b, y)
        for x in whole + repeated:
            _emit_whole(e, x, Target(y, accumulate=started))
            started = True

    def emit_activated(self, e: Emitter, a: Tensor, b: Tensor, y: Tensor, activation: Function = LINEAR) -> None:
        """Emit y = activation(a + b), all of one shape."""
        groups, count = e.bands(y.rows, y.blocks, 64, several=True)
        e.launch(
            "elementwise.cl", "add", (groups, y.blocks), a.read, b.read, y.write, y.rows, count,
            **activation.macros(), **y.value_macros,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        for x, target in zip(inputs, targets, strict=True):
            if target is None:
                continue
            if x.shape == dy.shape:
                emit_copy(e, dy, target)
            elif _has_pixels_to_repeat(x, dy):
                emit_summed(e, dy, target)
            else:
                operand = BroadcastOperand.of(x, dy)
                Gradient("add", (operand, operand), True, "", dy).emit(e, target)


@dataclass(frozen=True)
class Concatenate(Op):
    """Concatenates the channels of two or more tensors of equal height and width."""

    selects = True

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) < 2 or len({shape[:-1] for shape in shapes}) > 1:
            raise ShapeError(
                f"Concatenate takes two or more inputs that differ only in channels, not {', '.join(map(str, shapes))}."
            )
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.concatenate(inputs, -1)

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return np.split(dy, _offsets(inputs)[1:], -1), {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        """The first input's launch also writes zeros in the places of the others."""
        for x, offset in zip(inputs, _offsets(inputs), strict=True):
            blocks = y.blocks if offset == 0 else -(-(offset + x.channels) // y.block) - offset // y.block
            groups, count = e.bands(x.rows, blocks, 64)
            e.launch(
                "concatenate.cl", "concatenate_forward", (groups, blocks), x.read, y.update if offset else y.write,
                x.rows, count, x.channels, offset, whole=True,
            )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        for x, offset, target in zip(inputs, _offsets(inputs), targets, strict=True):
            if target is None:
                continue
            groups, count = e.bands(x.rows, x.blocks, 64)
            e.launch(
                "concatenate.cl", "concatenate_backward", (groups, x.blocks), dy.read, x.rows, count, x.channels,
                offset, *target.arguments, whole=True, **target.macros,
            )  # fmt: skip


def _emit_whole(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = x, repeated to the target's size."""
    y = target.tensor
    if x.shape == y.shape:
        emit_copy(e, x, target)
    elif _has_pixels_to_repeat(x, y):
        emit_repeated(e, x, target)
    else:
        added = len(y.shape) - len(x.shape)
        sizes = (1,) * added + x.shape[1:]
        axes = [
            Axis.repeated(full, max(0, axis - added)) if n < full else Axis.whole(full, max(0, axis - added))
            for axis, (n, full) in enumerate(zip(sizes, y.shape[1:], strict=True))
        ]
        emit_gather(e, x, axes, target)


def _has_pixels_to_repeat(x: Tensor, y: Tensor) -> bool:
    """True for an image of the channels of y."""
    return len(x.shape) == len(y.shape) == 4 and x.channels == y.channels


def _offsets(inputs: list[Tensor] | list[np.ndarray]) -> list[int]:
    """The first channel of each input."""
    return list(accumulate((x.shape[-1] for x in inputs[:-1]), initial=0))


# Multiples of it add up exactly below 256: a stream is restored to the bit. Differences of other floats are off by
# their rounding, enough to flip a rectifier here and there, and a bias's gradient by per cents.
STEP = 2.0**-16


@dataclass(frozen=True)
class Stream(Op):
    """Rounds the input to multiples of `step`, a power of two: the start of a stream."""

    step: float = STEP

    def __post_init__(self) -> None:
        _check(self.step)

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.round(inputs[0] / self.step) * self.step

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [dy], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        groups, count = e.bands(y.rows, y.blocks, 64)
        e.launch(
            "coupling.cl", "begin", (groups, y.blocks), inputs[0].read, y.write, y.rows, count, float(self.step),
            1 / self.step,
        )  # fmt: skip

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        emit_copy(e, dy, only(targets))


@dataclass(frozen=True)
class Coupling(Add):
    """y = x + f, with f rounded to multiples of `step` unless that is 0; x must be multiples of `step` already.

    x need not be stored, since y - f restores it, provided that f is computed from another stream.
    """

    step: float = STEP

    invertible = True

    def __post_init__(self) -> None:
        if self.step:
            _check(self.step)

    @property
    def inverts_exactly(self) -> bool:
        return bool(self.step)

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(shapes) != 2:
            raise ShapeError(f"Coupling takes a stream and what is added to it, not {len(shapes)} inputs.")
        if shapes[0] != shapes[1]:
            raise ShapeError(f"Coupling adds a tensor of the same shape to a stream of {shapes[0]}, not {shapes[1]}.")
        return shapes[0]

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        x, f = inputs
        return x + (np.round(f / self.step) * self.step if self.step else f)

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        self._emit(e, "couple", inputs[0], inputs[1], y)

    def emit_inverse(self, e: Emitter, y: Tensor, others: list[Tensor], x: Tensor) -> None:
        self._emit(e, "uncouple", y, others[0], x)

    def _emit(self, e: Emitter, kernel: str, a: Tensor, f: Tensor, result: Tensor) -> None:
        groups, count = e.bands(a.rows, a.blocks, 64)
        steps = (float(self.step), 1 / self.step) if self.step else ()
        e.launch(
            "coupling.cl", kernel, (groups, a.blocks), a.read, f.read, result.write, a.rows, count, *steps,
            exact=bool(self.step),
        )  # fmt: skip


def _check(step: float) -> None:
    """Raises ShapeError."""
    if step <= 0 or frexp(step)[0] != 0.5:
        raise ShapeError(f"The step of a stream is a power of two, such as 2**-16, not {step}.")
