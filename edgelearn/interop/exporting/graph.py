"""An inference graph: the operations that runtimes such as LiteRT and ONNX Runtime have, in the order they run.

Activations have a batch axis and channels last. Writers of formats translate a graph operation by operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from edgelearn.ops.window import Window

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Quantization:
    """Integers q of 8 bits stand for scale * (q - zero).

    Arguments:
    - `scale`: float32, one number, or one for each index of `axis`.
    - `zero`: the integer that stands for 0.
    - `axis`: axis of a constant that has a scale for each index; None for one scale.
    """

    scale: np.ndarray
    zero: int = 0
    axis: int | None = None

    def same(self, other: Quantization) -> bool:
        return self.zero == other.zero and np.array_equal(self.scale, other.scale)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """The int8 that stand for `values`."""
        return np.clip(np.rint(values / self._scales(values)) + self.zero, -128, 127).astype(np.int8)

    def decode(self, integers: np.ndarray) -> np.ndarray:
        return ((integers.astype(np.float32) - np.float32(self.zero)) * self._scales(integers)).astype(np.float32)

    def _scales(self, values: np.ndarray) -> np.ndarray:
        if self.axis is None:
            return self.scale
        return self.scale.reshape([-1 if axis == self.axis else 1 for axis in range(values.ndim)])


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph.

    Arguments:
    - `name`: unique in the graph.
    - `shape`: for activations with a batch of 1 in front.
    - `array`: values of a constant, float32 or int64; None for activations.
    - `quantization`: of a constant whose values are those of integers.
    """

    name: str
    shape: Shape
    array: np.ndarray | None = None
    quantization: Quantization | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation.

    Arguments:
    - `kind`: its name; `attributes`: its settings (see the methods of InferenceGraph).
    - `inputs`, `output`: the values that it reads and the one that it writes.
    """

    kind: str
    inputs: tuple[Value, ...]
    output: Value
    attributes: Mapping[str, Any] = field(default_factory=dict)


class InferenceGraph:
    """Operations in order, between `inputs` and `outputs`, values by name. Each method appends an operation and returns
    its output; shapes have a batch axis, which is 1 here and any number when the graph runs.

    Arguments:
    - `name`: of the network.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.operations: list[Operation] = []
        self._names: set[str] = set()
        self.layer = name  # that is being written; names its values

    def input(self, name: str, shape: Sequence[int]) -> Value:
        self.inputs[name] = Value(self._unique(name), (1, *shape))
        return self.inputs[name]

    def constant(self, array: Any, name: str = "constant", quantization: Quantization | None = None) -> Value:
        array = np.asarray(array)
        return Value(self._unique(f"{self.layer}/{name}"), array.shape, array, quantization)

    def conv(
        self, x: Value, kernel: Value, bias: Value | None, window: Window, filters: int, groups: int = 1,
        activation: str | None = None,
    ) -> Value:  # fmt: skip
        """Convolution with a kernel (height, width, input channels / groups, filters)."""
        attributes = {"window": window, "groups": groups, "activation": activation}
        return self._add("conv", (x, kernel, *_given(bias)), (1, *window.output, filters), **attributes)

    def depthwise(
        self, x: Value, kernel: Value, bias: Value | None, window: Window, activation: str | None = None
    ) -> Value:
        """Convolution of each channel with kernels of its own: (height, width, 1, channels times kernels a channel)."""
        shape = (1, *window.output, kernel.shape[-1])
        return self._add("depthwise", (x, kernel, *_given(bias)), shape, window=window, activation=activation)

    def transposed_conv(self, x: Value, kernel: Value, window: Window) -> Value:
        """The gradient of a convolution with this window: each pixel adds the kernel (height, width, channels, filters)
        times its values, and the window's padding is cut off."""
        shape = (1, window.height, window.width, kernel.shape[-1])
        return self._add("transposed_conv", (x, kernel), shape, window=window)

    def dense(self, x: Value, kernel: Value, bias: Value | None, activation: str | None = None) -> Value:
        """Product with a kernel (inputs, outputs)."""
        shape = (*x.shape[:-1], kernel.shape[-1])
        return self._add("dense", (x, kernel, *_given(bias)), shape, activation=activation)

    def unary(self, kind: str, x: Value, **attributes: Any) -> Value:
        """One of relu, relu6, sigmoid, tanh, exp, log, sqrt, abs, neg, round, softmax, and others that writers have."""
        return self._add(kind, (x,), x.shape, **attributes)

    def binary(self, kind: str, x: Value, y: Value) -> Value:
        """One of add, sub, mul, div, maximum, minimum, with sizes of 1 broadcast."""
        return self._add(kind, (x, y), np.broadcast_shapes(x.shape, y.shape))

    def scalar(self, kind: str, x: Value, value: Any) -> Value:
        """`binary` with float32 values."""
        return self.binary(kind, x, self.constant(np.asarray(value, np.float32)))

    def pad(self, x: Value, sides: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Value:
        """Pad each axis, the batch's among them, by (before, after). `mode`: constant, reflect or symmetric."""
        if not any(map(any, sides)):
            return x
        shape = tuple(n + sum(both) for n, both in zip(x.shape, sides, strict=True))
        return self._add("pad", (x,), shape, sides=tuple(map(tuple, sides)), value=value, mode=mode)

    def max_pool(self, x: Value, window: Window) -> Value:
        return self._add("max_pool", (x,), (1, *window.output, x.shape[-1]), window=window)

    def average_pool(self, x: Value, window: Window) -> Value:
        """The mean of each window without its padding."""
        return self._add("average_pool", (x,), (1, *window.output, x.shape[-1]), window=window)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keep: bool = True) -> Value:
        """One of mean, sum, max over axes from 1 on."""
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if keep or axis not in axes)
        return self._add(f"reduce_{kind}", (x,), shape, axes=tuple(axes), keep=keep)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Change the shape of each example, in C order."""
        shape = (1, *shape)
        assert prod(shape) == prod(x.shape)
        return x if shape == x.shape else self._add("reshape", (x,), shape)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Reorder the axes; the batch's stays the first."""
        return self._add("transpose", (x,), tuple(x.shape[axis] for axis in order), order=tuple(order))

    def slice(self, x: Value, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> Value:
        """`sizes` elements of each axis but the batch's, from `starts` on, every `steps`-th (default 1)."""
        steps = tuple(steps or (1,) * len(sizes))
        last = [start + (size - 1) * step for start, size, step in zip(starts, sizes, steps, strict=True)]
        ends = [end + (1 if step > 0 else -1) for end, step in zip(last, steps, strict=True)]
        ends = tuple(end if end >= 0 else -n - 1 for end, n in zip(ends, x.shape[1:], strict=True))  # before the first
        return self._add("slice", (x,), (1, *sizes), starts=tuple(starts), ends=ends, steps=steps)

    def concatenate(self, values: Sequence[Value], axis: int = -1) -> Value:
        axis %= len(values[0].shape)
        total = sum(value.shape[axis] for value in values)
        shape = tuple(total if i == axis else n for i, n in enumerate(values[0].shape))
        return self._add("concatenate", tuple(values), shape, axis=axis)

    def quantize(self, x: Value, quantization: Quantization) -> Value:
        """Round to the values that int8 stand for."""
        return self._add("quantize", (x,), x.shape, quantization=quantization)

    def add(self, kind: str, inputs: Sequence[Value], shape: Sequence[int], **attributes: Any) -> Value:
        """Any other kind, whose output has this shape."""
        return self._add(kind, tuple(inputs), tuple(shape), **attributes)

    def _add(self, kind: str, inputs: tuple[Value, ...], shape: Shape, **attributes: Any) -> Value:
        output = Value(self._unique(f"{self.layer}/{kind}"), tuple(map(int, shape)))
        self.operations.append(Operation(kind, inputs, output, attributes))
        return output

    def _unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return unique


def _given(value: Value | None) -> tuple[Value, ...]:
    return () if value is None else (value,)
