"""Operands of arithmetic: tensors repeated to the size of the result, as NumPy does, and the launches that read them.

Ranks may differ, as in Keras: sizes of 1 are put before an example's own, so that (channels,) fits (height, width,
channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import Access

from .emit import Emitter
from .sums import Sum, start_sum
from .target import Target
from .tensor import BLOCK, Shape, Tensor, ceil_div

WHOLE, REPEATED, SINGLE = 0, 1, 2  # kinds of operands in kernels/arithmetic.cl
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
class Operand:
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
    def of(cls, x: Tensor, y: Tensor, is_weight: bool = False) -> Operand:
        """`x` as an operand of a function whose result is `y`."""
        images, shape = (1, x.shape) if is_weight else (x.images, x.shape[1:])
        rank = len(y.shape) - 1
        return cls(x, (images, *_image(shape, rank)), (y.images, *_image(y.shape[1:], rank)))

    @property
    def kind(self) -> int:
        if self.sizes == self.full:
            return WHOLE
        return SINGLE if self.sizes[3] < self.full[3] else REPEATED

    @property
    def arguments(self) -> tuple[Access | int, ...]:
        """OPERAND in kernels/arithmetic.cl."""
        _, height, width, _ = self.sizes
        steps = (height * width, width, 1)
        moves = (step if n > 1 else 0 for step, n in zip(steps, self.sizes, strict=False))
        return self.tensor.read, *moves, self.tensor.rows


def emit_combined(e: Emitter, function: str, a: Operand, b: Operand, y: Tensor, padded: bool = False) -> None:
    """Emit y = function(a, b). `padded`: the function doesn't keep the zeros of padding channels."""
    _, height, width, _ = a.full
    groups, count = e.bands(y.rows, y.blocks, 64)
    channels, macros = _selected(function, (a, b), padded)
    e.launch(
        "arithmetic.cl", "combine", (groups, y.blocks), *a.arguments, *b.arguments, y.write, y.rows, count, *channels,
        height, width, **macros,
    )  # fmt: skip


def emit_chosen(e: Emitter, condition: Operand, a: Operand, b: Operand, y: Tensor) -> None:
    """Emit y = a where the condition isn't 0, else b."""
    _, height, width, _ = a.full
    groups, count = e.bands(y.rows, y.blocks, 64)
    operands = (condition, a, b)
    channels, macros = _selected("same", (a, b), any(o.kind == SINGLE for o in operands))
    e.launch(
        "arithmetic.cl", "choose", (groups, y.blocks), *(argument for o in operands for argument in o.arguments),
        y.write, y.rows, count, *channels, height, width, kind_c=condition.kind, **macros,
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
    operands: Sequence[Operand]
    first: bool
    reads: str
    dy: Tensor
    padded: bool = False

    @property
    def own(self) -> Operand:
        return self.operands[0 if self.first else 1]

    @property
    def read(self) -> list[Operand]:
        """The operands; for one that the derivative doesn't depend on, dy, so that it need not be stored."""
        pairs = zip("ab", self.operands, strict=True)
        return [o if name in self.reads else Operand(self.dy, o.full, o.full) for name, o in pairs]

    def emit(self, e: Emitter, target: Target) -> None:
        """Emit the gradient of an input."""
        own, dy = self.own, self.dy
        if own.kind != WHOLE:
            total, members, _ = self._group(e)
            self._emit_sum(e, target.arguments, target.macros, 1, ceil_div(total, members))
            return
        groups, count = e.bands(dy.rows, dy.blocks, 64)
        channels, macros = self._macros
        e.launch(
            "arithmetic.cl", "combine_gradient", (groups, dy.blocks), *self._operands, dy.read, dy.rows, count,
            *channels, *own.full[1:3], *target.arguments, **macros, **target.macros,
        )  # fmt: skip

    def emit_for_weight(self, e: Emitter, target: Target) -> Sum:
        """Emit the gradient of a weight. `finish` completes the sum."""
        total, members, _ = self._group(e)
        units = self.own.tensor.rows * self.own.tensor.blocks * members
        groups, _ = e.split_rows(ceil_div(total, members), units, least=64)
        sums, count = start_sum(e, target.tensor, total, groups, members)
        access = sums.target.update if target.accumulate else sums.target.write
        self._emit_sum(e, [access], {"accumulate": target.accumulate}, sums.groups, count)
        return sums

    def _emit_sum(
        self, e: Emitter, arguments: Sequence[Access], macros: dict[str, Any], groups: int, count: int
    ) -> None:
        """Emit the gradient of an operand that is repeated, in `groups` sums of `count` pixels a member."""
        own, x = self.own, self.own.tensor
        _, members, group = self._group(e)
        _, chosen = self._macros
        single = own.kind == SINGLE
        e.launch(
            "arithmetic.cl", "combine_gradient_sum", (x.rows * groups * members, x.blocks), *self._operands,
            self.dy.read, x.rows, self.dy.rows, own.full[3], *own.full[1:3], *own.sizes[1:3], *self._repeats, groups,
            count, *arguments, group=group, whole=single, one_channel=single, **chosen, **macros,
        )  # fmt: skip

    def _group(self, e: Emitter) -> tuple[int, int, int]:
        """(pixels of a sum, members of a work-group that share it, its work-items)"""
        total, vectors = prod(self._repeats), 1 if self.own.kind == SINGLE else BLOCK // e.traits.vector
        members = e.traits.group // vectors
        return (total, members, e.traits.group) if total >= 4 * members else (total, 1, vectors)

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


def _selected(function: str, operands: Sequence[Operand], padded: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """(the channels, if zeros must be written where they are padded; the macros that select the function)"""
    a, b = operands
    channels = a.full[3]
    padded = (padded or SINGLE in (a.kind, b.kind)) and channels % BLOCK != 0
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
