"""Functions of single values, which kernels apply as they write.

The blocked matrix: the layout of every tensor on a device.

A tensor is rows x channels. It is stored as [channels / 16][rows][16], channels padded with zeros to a multiple of 16:
activations have images * height * width rows, a convolution's weights have taps * input channels rows, a bias has one.
Vector units and memory lines of CPUs and GPUs take 16 floats at a time, and a matrix tile is contiguous in it.
A network's input of fewer than 16 channels may have `block` = its channels instead: then it is plain NHWC.
Values are float32 or, in rounded tensors, halves (float16, bfloat16) or int8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np

from edgelearn.launch import Buffer, In, InMask, InOut, Out, words_of


@dataclass(frozen=True)
class Function:
    """A function of single values: a pair of inline functions in OpenCL C, `NAME_forward` and `NAME_backward`.

    Arguments:
    - `name`: of the pair (default "linear").
    - `parameters`: up to two numbers that it is compiled with (default none).
    - `two_slopes`: the derivative has two values only, those where the output is 0 and where it is 1 (default False).
      Then a mask of bits can replace the output.
    - `of_input`: the derivative follows from the input, not the output (default False).
    """

    name: str = "linear"
    parameters: tuple[float, ...] = ()
    two_slopes: bool = False
    of_input: bool = False

    def macros(self, prefix: str = "activation") -> dict[str, Any]:
        """The macros that select it. Names such as tanh are macros themselves in some drivers, so an underscore is
        added here."""
        numbers = {f"{prefix}_{n}": _literal(value) for n, value in zip("ab", self.parameters, strict=False)}
        return {prefix: f"{self.name}_"} | numbers


LINEAR = Function()
RELU = Function("relu", two_slopes=True)
RELU6 = Function("relu6", two_slopes=True)


def _literal(value: float) -> str:
    """The nearest float32 as OpenCL C."""
    if abs(value) == inf:
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(np.float32(value)).hex()}f"


BLOCK = 16
UNIT = 64  # bytes that places of tensors are multiples of
HALVES = {"float16": 1, "bfloat16": 3}  # VALUES in kernels/include/values.h
Shape = tuple[int, ...]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def blocked_bytes(rows: int, channels: int, block: int = BLOCK, dtype: str = "float32") -> int:
    """Bytes of a blocked matrix."""
    return ceil_div(channels, block) * block * rows * words_of(dtype).itemsize


Empty = Callable[[Shape, str], np.ndarray]


def pack(array: np.ndarray, block: int = BLOCK, dtype: str = "float32", empty: Empty | None = None) -> np.ndarray:
    """[..., channels] -> [channels / block, rows, block] of `dtype`, in an array that `empty` makes (default: it may be
    `array` itself)."""
    matrix = np.asarray(array, dtype).reshape(-1, array.shape[-1] if array.ndim else 1)
    rows, channels = matrix.shape
    blocks = ceil_div(channels, block)
    if empty is not None:
        words = empty((blocks, rows, block), dtype)
        for index in range(blocks):
            columns = matrix[:, index * block : (index + 1) * block]
            words[index, :, : columns.shape[1]] = columns
            words[index, :, columns.shape[1] :] = 0
        return words
    if blocks * block != channels:
        padded = np.zeros((rows, blocks * block), dtype)  # np.pad would take most of the time of a small prediction
        padded[:, :channels] = matrix
        matrix = padded
    return np.ascontiguousarray(matrix.reshape(rows, blocks, block).swapaxes(0, 1))


def unpack(packed: np.ndarray, shape: Shape, block: int = BLOCK) -> np.ndarray:
    """The inverse of `pack`: `shape` from the flat or blocked words."""
    rows, channels = prod(shape[:-1]), shape[-1]
    if rows == 1:
        return packed.reshape(-1)[:channels].reshape(shape).copy()
    matrix = np.empty((rows, channels), packed.dtype)
    for start, columns in zip(range(0, channels, block), packed.reshape(-1, rows, block), strict=False):
        matrix[:, start : start + block] = columns[:, : channels - start]
    return matrix.reshape(shape)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A buffer in the device layout, [channels / block][rows][block].

    Arguments:
    - `buffer`: its memory.
    - `shape`: ends with the channels: (n, height, width, channels), (n, channels), (taps, in, out)...
    - `block`: channels of a block: 16 (default), or fewer for a network's input, which is plain NHWC then.
    - `first`: bytes of the buffer before it (default 0); see `view`.
    """

    buffer: Buffer
    shape: Shape
    block: int = BLOCK
    first: int = 0

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def is_halves(self) -> bool:
        return self.dtype in HALVES

    @property
    def value_macros(self) -> dict[str, int]:
        """VALUES in kernels/include/values.h, for launches that read and write activations of this type."""
        return {"values": HALVES[self.dtype]} if self.is_halves else {}

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def blocks(self) -> int:
        return ceil_div(self.channels, self.block)

    @property
    def images(self) -> int:
        return self.shape[0]

    @property
    def height(self) -> int:
        return self.shape[1] if len(self.shape) == 4 else 1

    @property
    def width(self) -> int:
        return self.shape[2] if len(self.shape) == 4 else 1

    @property
    def read(self) -> In:
        return In(self.buffer, self._part, self.first)

    def read_output_of(self, function: Function) -> In:
        """The kernel reads the output of an activation for its derivative."""
        return (InMask if function.two_slopes else In)(self.buffer, self._part, self.first)

    @property
    def write(self) -> Out:
        return Out(self.buffer, self._part, self.first)

    @property
    def update(self) -> InOut:
        return InOut(self.buffer, self._part, self.first)

    def read_rows(self, count: int) -> In:
        """The kernel reads `count` of the rows."""
        return In(self.buffer, blocked_bytes(count, self.channels, self.block, self.dtype), self.first)

    def view(self, start: int, size: int) -> Tensor | None:
        """Channels `start` to `start` + `size` - 1 where they lie, if that is at a whole block of them and a place that
        kernels can be given; else None."""
        of_block = blocked_bytes(self.rows, BLOCK, BLOCK, self.dtype)
        if self.block < BLOCK or start % BLOCK or size % BLOCK or of_block % UNIT:
            return None
        first = self.first + start // BLOCK * of_block
        return replace(self, shape=(*self.shape[:-1], size), first=first)

    @property
    def _part(self) -> int | None:
        """Bytes of the tensor if its buffer is larger, since it serves micro-batches of several sizes."""
        nbytes = blocked_bytes(self.rows, self.channels, self.block, self.dtype)
        return nbytes if nbytes < self.buffer.nbytes else None
