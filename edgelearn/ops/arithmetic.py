"""Arithmetic of tensors, and of a tensor and a weight. Sizes of 1 are repeated, as in NumPy; ranks may differ, as in
Keras: sizes of 1 are put before an example's own, so that (channels,) fits (height, width, channels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import Access

from .base import Arrays, Gradients, Op, Targets, Weight, is_count, only
from .constants import OperandKind
from .emit import Emitter, GradientSum, start_sum
from .formula import NUMPY, differentiate
from .quantize import group_size
from .shapes import emit_zeros
from .target import Target
from .tensor import BLOCK, Shape, Tensor, ceil_div

Sizes = tuple[int, int, int, int]  # images, height, width, channels


def broadcast(kind: str, *shapes: Shape) -> Shape:
    """The shape that all `shapes` are repeated to. Raises ShapeError, naming the `kind` of op, if there is none."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    if any(n not in (1, whole) for shape in padded for n, whole in zip(shape, result, strict=True)):
        raise ShapeError(f"{kind} takes shapes whose sizes are equal or 1, not {', '.join(map(str, shapes))}.")
    if any(_mixed(shape, result) for shape in padded):
        raise ShapeError(
            f"{kind} of {', '.join(map(str, shapes))}: with more than three axes, those between the first and the last "
            f"are repeated all or none."
        )
    return result


def aligned(x: np.ndarray, rank: int) -> np.ndarray:
    """An input with sizes of 1 between the batch and its own, so that it has `rank` axes."""
    return x.reshape(x.shape[:1] + (1,) * (rank - x.ndim) + x.shape[1:])


def reduced(g: np.ndarray, shape: Shape) -> np.ndarray:
    """The sum of a gradient over what was repeated from `shape`, which may have fewer axes in front."""
    padded = (1,) * (g.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, n in enumerate(padded) if n != g.shape[axis])
    return g.sum(axes, keepdims=True).reshape(shape)


@dataclass(frozen=True)
class BroadcastOperand:
    """A tensor as arithmetic reads it.

    Arguments:
    - `tensor`: an input, or a weight.
    - `sizes`: its images, height, width and channels, 1 where it is repeated.
    - `full`: those of the result.
    """

    tensor: Tensor
    sizes: Sizes
    full: Sizes

    @classmethod
    def of(cls, x: Tensor, y: Tensor, is_weight: bool = False) -> BroadcastOperand:
        """`x` as an operand of a function whose result is `y`."""
        images, shape = (1, x.shape) if is_weight else (x.images, x.shape[1:])
        rank = len(y.shape) - 1
        return cls(x, (images, *_image(shape, rank)), (y.images, *_image(y.shape[1:], rank)))

    @property
    def kind(self) -> int:
        if self.sizes == self.full:
            return OperandKind.WHOLE
        return OperandKind.SINGLE if self.sizes[3] < self.full[3] else OperandKind.REPEATED

    @property
    def arguments(self) -> tuple[Access | int, ...]:
        """OPERAND in kernels/arithmetic.cl."""
        _, height, width, _ = self.sizes
        steps = (height * width, width, 1)
        moves = (step if n > 1 else 0 for step, n in zip(steps, self.sizes, strict=False))
        return self.tensor.read, *moves, self.tensor.rows


def emit_combined(
    e: Emitter, function: str, a: BroadcastOperand, b: BroadcastOperand, y: Tensor, padded: bool = False
) -> None:
    """Emit y = function(a, b). `padded`: the function doesn't keep the zeros of padding channels."""
    _, height, width, _ = a.full
    groups, count = e.bands(y.rows, y.blocks, 64, several=True)
    channels, macros = _selected(function, (a, b), padded)
    e.launch(
        "arithmetic.cl", "combine", (groups, y.blocks), *a.arguments, *b.arguments, y.write, y.rows, count, *channels,
        height, width, **macros, **y.value_macros,
    )  # fmt: skip


def emit_chosen(e: Emitter, condition: BroadcastOperand, a: BroadcastOperand, b: BroadcastOperand, y: Tensor) -> None:
    """Emit y = a where the condition isn't 0, else b."""
    _, height, width, _ = a.full
    groups, count = e.bands(y.rows, y.blocks, 64)
    operands = (condition, a, b)
    channels, macros = _selected("same", (a, b), any(o.kind == OperandKind.SINGLE for o in operands))
    e.launch(
        "arithmetic.cl", "choose", (groups, y.blocks), *(argument for o in operands for argument in o.arguments),
        y.write, y.rows, count, *channels, height, width, kind_c=condition.kind, **macros, **y.value_macros,
    )  # fmt: skip


@dataclass(frozen=True)
class Gradient:
    """Tensors that the gradient of an operand is computed from.

    Arguments:
    - `function`: of kernels/arithmetic.cl.
    - `operands`: both of them.
    - `first`: it is the gradient of the first one.
    - `reads`: which of "a" and "b" the derivative depends on.
    - `dy`: gradient of the result.
    - `padded`: the derivative doesn't keep the zeros of padding channels.
    """

    function: str
    operands: Sequence[BroadcastOperand]
    first: bool
    reads: str
    dy: Tensor
    padded: bool = False

    @property
    def own(self) -> BroadcastOperand:
        return self.operands[0 if self.first else 1]

    @property
    def read(self) -> list[BroadcastOperand]:
        """The operands; for one that the derivative doesn't depend on, dy, so that it need not be stored."""
        pairs = zip("ab", self.operands, strict=True)
        return [o if name in self.reads else BroadcastOperand(self.dy, o.full, o.full) for name, o in pairs]

    def emit(self, e: Emitter, target: Target) -> None:
        """Emit the gradient of an input."""
        own, dy = self.own, self.dy
        if own.kind != OperandKind.WHOLE:
            total, members, _ = self._group(e)
            self._emit_sum(e, target.arguments, target.macros, 1, ceil_div(total, members))
            return
        groups, count = e.bands(dy.rows, dy.blocks, 64, several=True)
        channels, macros = self._macros
        e.launch(
            "arithmetic.cl", "combine_gradient", (groups, dy.blocks), *self._operands, dy.read, dy.rows, count,
            *channels, *own.full[1:3], *target.arguments, **macros, **target.macros,
        )  # fmt: skip

    def emit_for_weight(self, e: Emitter, target: Target) -> GradientSum:
        """Emit the gradient of a weight. `finish` completes the sum."""
        total, members, _ = self._group(e)
        units = self.own.tensor.rows * self.own.tensor.blocks * members
        groups, _ = e.split_rows(ceil_div(total, members), units, least=64)
        sums, count = start_sum(e, target.tensor, total, groups, members)
        access = sums.access(target.accumulate)
        self._emit_sum(e, [access], {"accumulate": target.accumulate}, sums.groups, count)
        return sums

    def _emit_sum(
        self, e: Emitter, arguments: Sequence[Access], macros: dict[str, Any], groups: int, count: int
    ) -> None:
        """Emit the gradient of an operand that is repeated, in `groups` sums of `count` pixels a member."""
        own, x = self.own, self.own.tensor
        _, members, group = self._group(e)
        _, chosen = self._macros
        single = own.kind == OperandKind.SINGLE
        macros = macros | ({"whole_images": True} if e.traits.gpu and own.sizes[1:3] == (1, 1) else {})
        e.launch(
            "arithmetic.cl", "combine_gradient_sum", (x.rows * groups * members, x.blocks), *self._operands,
            self.dy.read, x.rows, self.dy.rows, own.full[3], *own.full[1:3], *own.sizes[1:3], *self._repeats, groups,
            count, *arguments, group=group, whole=single, one_channel=single, **chosen,
            **macros,
        )  # fmt: skip

    def _group(self, e: Emitter) -> tuple[int, int, int]:
        """(pixels of a sum, members of a work-group that share it, its work-items)"""
        total, vectors = prod(self._repeats), 1 if self.own.kind == OperandKind.SINGLE else BLOCK // e.traits.vector
        group = next((size for size in (group_size(e), e.traits.group) if total * vectors >= 2 * size), vectors)
        return total, group // vectors, group

    @property
    def _repeats(self) -> tuple[int, int, int]:
        """How often each image, row and column of the operand is repeated."""
        images, down, right, _ = (f if n < f else 1 for n, f in zip(self.own.sizes, self.own.full, strict=True))
        return images, down, right

    @property
    def _operands(self) -> list[Access | int]:
        return [argument for operand in self.read for argument in operand.arguments]

    @property
    def _macros(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        channels, macros = _selected(self.function, self.read, self.padded)
        return channels, macros | {"first": self.first}


def _selected(
    function: str, operands: Sequence[BroadcastOperand], padded: bool
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """(the channels, if zeros must be written where they are padded; the macros that select the function)"""
    a, b = operands
    channels = a.full[3]
    padded = (padded or OperandKind.SINGLE in (a.kind, b.kind)) and channels % BLOCK != 0
    macros = {"function": f"{function}_", "kind_a": a.kind, "kind_b": b.kind, "padded": padded}
    return ((channels,) if padded else ()), macros


def _image(shape: Shape, rank: int) -> tuple[int, int, int]:
    """The shape of an example, which results of `rank` axes are made of, as (height, width, channels)."""
    padded = (1,) * (max(rank, 3) - len(shape)) + tuple(shape)
    return padded[0], prod(padded[1:-1]), padded[-1]


def _mixed(shape: Shape, result: Shape) -> bool:
    """True if some of the axes between the first and the last are repeated, and some are not."""
    inner = {n == whole for n, whole in zip(shape[1:-1], result[1:-1], strict=True) if whole > 1}
    return len(result) > 3 and len(inner) > 1


@dataclass(frozen=True)
class BroadcastTo(Op):
    """Repeats sizes of 1, and axes that are missing in front: keras.ops.broadcast_to. Sums and products repeat by
    themselves.

    Arguments:
    - `shape`: of the output, without the batch.

    Raises ShapeError for an input that can't be repeated to it.
    """

    shape: Shape

    selects = True

    def output_shape(self, shape: Shape) -> Shape:
        if broadcast("BroadcastTo", shape, self.shape) != tuple(self.shape):
            raise ShapeError(f"{shape} can't be repeated to {self.shape}: its sizes are those or 1.")
        return self.shape

    def formula(self, xp: Any, x: Any) -> Any:
        """The function as an expression of a namespace `xp` such as `torch` or `keras.ops`: see formula.py."""
        return x * xp.ones(self.shape)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        x = aligned(inputs[0], 1 + len(self.shape))
        return np.broadcast_to(x, (len(x), *self.shape)).copy()

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        (x,) = inputs
        return [reduced(dy, aligned(x, dy.ndim).shape).reshape(x.shape)], {}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        x = BroadcastOperand.of(inputs[0], y)
        emit_combined(e, "same", x, x, y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        operands = BroadcastOperand.of(inputs[0], dy), BroadcastOperand.of(dy, dy)
        Gradient("same", operands, True, "", dy).emit(e, only(targets))


def emit_repeated(e: Emitter, x: Tensor, target: Target, factor: float = 1.0) -> None:
    """Emit target = factor * x, repeated along height or width where x has 1 and the target more."""
    _emit_along(e, "repeat", x, target, factor, least=64)


def emit_summed(e: Emitter, x: Tensor, target: Target, factor: float = 1.0) -> None:
    """Emit target = factor * x, summed along height or width where the target has 1 and x more: the gradient of
    `emit_repeated`."""
    _emit_along(e, "sum_repeated", x, target, factor, least=8)


def _emit_along(e: Emitter, kernel: str, x: Tensor, target: Target, factor: float, least: int) -> None:
    y = target.tensor
    groups, count = e.bands(y.rows, y.blocks, least)
    e.launch(
        "broadcast.cl", kernel, (groups, y.blocks), x.read, y.rows, count, x.height, x.width, y.height, y.width,
        float(factor), *target.arguments, **target.macros,
    )  # fmt: skip


@dataclass(frozen=True)
class Elementwise(Op):
    """Base of functions of several tensors whose sizes of 1 are repeated."""

    has_values = True
    takes: ClassVar[str] = "two inputs"  # for errors

    def formula(self, xp: Any, *inputs: Any, **_: Any) -> Any:
        """The function as an expression of a namespace `xp` such as `torch` or `keras.ops`: see formula.py."""
        raise NotImplementedError

    def output_shape(self, *shapes: Shape) -> Shape:
        kind = type(self).__name__
        if len(shapes) != (2 if self.takes == Elementwise.takes else 3):
            raise ShapeError(f"{kind} takes {self.takes}, not {len(shapes)}.")
        return broadcast(kind, *shapes)

    def flops(self, *shapes: Shape) -> int:
        return prod(self.output_shape(*shapes))

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self.formula(NUMPY, *_aligned(inputs))

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        operands = _aligned(inputs)
        found = zip(differentiate(self.formula, *operands), operands, inputs, strict=True)
        return [reduced(dy * slope, operand.shape).reshape(x.shape) for slope, operand, x in found], {}


@dataclass(frozen=True)
class Arithmetic(Elementwise):
    """Base of functions of two tensors, a and b."""

    function: ClassVar[str]  # of kernels/arithmetic.cl
    reads: ClassVar[tuple[str, str]] = ("", "")  # which of a and b the gradients of a and of b are computed from
    keeps_zero: ClassVar[bool] = True  # of two zeros

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        a, b = (BroadcastOperand.of(x, y) for x in inputs)
        emit_combined(e, self.function, a, b, y, not self.keeps_zero)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        operands = [BroadcastOperand.of(x, dy) for x in inputs]
        for first, reads, target in zip((True, False), self.reads, targets, strict=True):
            if target is not None:
                Gradient(self.function, operands, first, reads, dy, not self.keeps_zero).emit(e, target)


@dataclass(frozen=True)
class Subtract(Arithmetic):
    """a - b."""

    function = "subtract"

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return a - b


@dataclass(frozen=True)
class Multiply(Arithmetic):
    """a * b: of (height, width, channels) and (1, 1, channels), it is how squeeze-and-excitation weighs channels."""

    function = "multiply"
    reads = ("b", "a")

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return a * b


@dataclass(frozen=True)
class Divide(Arithmetic):
    """a / b."""

    function = "divide"
    reads = ("b", "ab")
    keeps_zero = False

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return a / b


@dataclass(frozen=True)
class Maximum(Arithmetic):
    """The larger of a and b. Where they are equal a has the gradient, as in TensorFlow."""

    function = "maximum"
    reads = ("ab", "ab")

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.maximum(a, b)


@dataclass(frozen=True)
class Minimum(Arithmetic):
    """The smaller of a and b. Where they are equal a has the gradient, as in TensorFlow."""

    function = "minimum"
    reads = ("ab", "ab")

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.minimum(a, b)


@dataclass(frozen=True)
class Greater(Arithmetic):
    """1 where a > b, else 0; no gradient passes."""

    function = "greater"

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return _truth(xp, a > b, a + b)


@dataclass(frozen=True)
class Less(Arithmetic):
    """1 where a < b, else 0; no gradient passes."""

    function = "less"

    def formula(self, xp: Any, a: Any, b: Any) -> Any:
        return _truth(xp, a < b, a + b)


@dataclass(frozen=True)
class Where(Elementwise):
    """The second input where the first one, the condition, isn't 0, and the third where it is: keras.ops.where. What
    isn't chosen has no part, not even as NaN, and no gradient; the condition has none."""

    takes = "a condition and two inputs to choose from"

    def formula(self, xp: Any, condition: Any, a: Any, b: Any) -> Any:
        return xp.where(condition != 0, a, b)

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        condition, a, b = (BroadcastOperand.of(x, y) for x in inputs)
        emit_chosen(e, condition, a, b, y)

    def emit_backward(self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets) -> None:
        condition, a, b = (BroadcastOperand.of(x, dy) for x in inputs)
        dc, da, db = targets
        for function, operand, first, reads, target in (
            ("where", a, True, "", dc), ("where", a, False, "a", da), ("otherwise", b, False, "a", db),
        ):  # fmt: skip
            if target is not None:
                Gradient(function, (condition, operand), first, reads, dy).emit(e, target)


def _aligned(inputs: list[np.ndarray]) -> list[np.ndarray]:
    rank = max(x.ndim for x in inputs)
    return [aligned(x, rank) for x in inputs]


def _truth(xp: Any, condition: Any, like: Any) -> Any:
    return xp.where(condition, xp.ones_like(like), xp.zeros_like(like))


@dataclass(frozen=True)
class WithWeight(Op):
    """Base of functions of an input and a weight."""

    function: ClassVar[str]  # of kernels/arithmetic.cl
    reads: ClassVar[tuple[str, str]]  # which of a (the input) and b (the weight) their gradients are computed from
    role: ClassVar[str]  # name of the weight
    initializer: ClassVar[str]

    def weight_shape(self, shape: Shape) -> Shape:
        """Shape of the weight for an input of `shape`."""
        raise NotImplementedError

    def formula(self, xp: Any, x: Any, w: Any) -> Any:
        """The function as an expression of a namespace `xp` such as `torch` or `keras.ops`: see formula.py."""
        raise NotImplementedError

    def output_shape(self, shape: Shape) -> Shape:
        weight = self.weight_shape(shape)
        if not weight or broadcast(type(self).__name__, shape, weight) != tuple(shape):
            raise ShapeError(
                f"A weight of {weight} can't be repeated to the size of {shape}: its sizes are those or 1."
            )
        return shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {self.role: Weight(self.weight_shape(shape), self.initializer)}

    def flops(self, shape: Shape) -> int:
        return prod(shape)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return self.formula(NUMPY, inputs[0], weights[self.role])

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        w = weights[self.role]
        dx, dw = (dy * slope for slope in differentiate(self.formula, inputs[0], w))
        return [dx], {self.role: reduced(dw, w.shape)}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        emit_combined(e, self.function, *self._operands(inputs, y), y)

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> list[GradientSum]:
        operands, (dx, dw) = self._operands(inputs, dy), targets
        if dx:
            Gradient(self.function, operands, True, self.reads[0], dy).emit(e, dx)
        return [Gradient(self.function, operands, False, self.reads[1], dy).emit_for_weight(e, dw)] if dw else []

    def _operands(self, inputs: list[Tensor], y: Tensor) -> tuple[BroadcastOperand, BroadcastOperand]:
        x, w = inputs
        return BroadcastOperand.of(x, y), BroadcastOperand.of(w, y, is_weight=True)


@dataclass(frozen=True)
class Repeated(WithWeight):
    """Base of functions whose weight has a shape of its own, which is repeated to the input's.

    Arguments:
    - `shape`: of the weight, whose sizes of 1 are repeated: (1,) for one number, (height, width, 1)... (default None:
      a number for each channel).
    """

    shape: Shape | None = None

    def weight_shape(self, shape: Shape) -> Shape:
        return shape[-1:] if self.shape is None else self.shape


@dataclass(frozen=True)
class Scale(Repeated):
    """x * scale, with a trained weight; freeze it for a constant.

    Arguments:
    - `shape`: of the weight, whose sizes of 1 are repeated: (1,) for one number, (height, width, 1)... (default None:
      a number for each channel).

    Raises ShapeError for a shape that can't be repeated to the input's.
    """

    function = "multiply"
    reads = ("b", "a")
    role = "scale"
    initializer = "ones"

    def formula(self, xp: Any, x: Any, w: Any) -> Any:
        return x * w


@dataclass(frozen=True)
class Bias(Repeated):
    """x + bias, with a trained weight; freeze it for a constant.

    Arguments:
    - `shape`: of the weight, whose sizes of 1 are repeated: (1,) for one number, (height, width, 1)... (default None:
      a number for each channel).

    Raises ShapeError for a shape that can't be repeated to the input's.
    """

    function = "add"
    reads = ("", "")
    role = "bias"
    initializer = "zeros"

    def formula(self, xp: Any, x: Any, w: Any) -> Any:
        return x + w


@dataclass(frozen=True)
class PReLU(WithWeight):
    """x where it is positive, else alpha * x with a trained alpha (He et al. 2015).

    Arguments:
    - `shared_axes`: axes along which alpha is the same, where 1 is the first, as in Keras: (1, 2) for one alpha of each
      channel of an image (default: none).

    Raises ShapeError for axes that the input doesn't have.
    """

    shared_axes: tuple[int, ...] = ()

    function = "prelu"
    reads = ("ab", "a")
    role = "alpha"
    initializer = "zeros"

    def weight_shape(self, shape: Shape) -> Shape:
        if not set(self.shared_axes) <= set(range(1, len(shape) + 1)):
            raise ShapeError(f"PReLU shares axes from 1 to {len(shape)} of {shape}, not {self.shared_axes}.")
        return tuple(1 if axis in self.shared_axes else n for axis, n in enumerate(shape, start=1))

    def formula(self, xp: Any, x: Any, w: Any) -> Any:
        return xp.where(x > 0, x, x * w)


@dataclass(frozen=True)
class Constant(Op):
    """A trained weight, the same for each example whatever the input holds, such as a class token; freeze it for a
    constant.

    Arguments:
    - `shape`: of the weight, and of the output.

    Raises ShapeError for a shape without axes.
    """

    shape: Shape

    role: ClassVar[str] = "value"

    def weight_shape(self, shape: Shape) -> Shape:
        return self.shape

    def output_shape(self, shape: Shape) -> Shape:
        if not self.shape or not all(map(is_count, self.shape)):
            raise ShapeError(f"A constant's shape is whole numbers of at least 1, not {self.shape}.")
        return self.shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        return {"value": Weight(self.shape, "zeros")}

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays) -> np.ndarray:
        return np.broadcast_to(weights["value"], (len(inputs[0]), *self.shape)).copy()

    def reference_backward(self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray) -> Gradients:
        return [np.zeros_like(inputs[0])], {"value": dy.sum(0)}

    def emit_forward(self, e: Emitter, inputs: list[Tensor], y: Tensor) -> None:
        weight = BroadcastOperand.of(inputs[1], y, is_weight=True)
        emit_combined(e, "same", weight, weight, y)

    def emit_backward(
        self, e: Emitter, inputs: list[Tensor], y: Tensor, dy: Tensor, targets: Targets
    ) -> list[GradientSum]:
        (_, w), (dx, dw) = inputs, targets
        if dx:
            emit_zeros(e, dy, dx)
        operands = BroadcastOperand.of(w, dy, is_weight=True), BroadcastOperand.of(dy, dy)
        return [Gradient("same", operands, True, "", dy).emit_for_weight(e, dw)] if dw else []
