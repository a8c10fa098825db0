"""Builds a network and its weights from another framework's operators; every format's handlers write to it.

Handlers get a `Value` for what the network computes and a NumPy array for what is constant. The functions of `linear`,
`windows`, `arithmetic` and `shapes` take both: they add layers for values and compute constants at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.graph import INPUT, Network
from edgelearn.ops import Constant, Flatten, Op, Reshape, Transpose
from edgelearn.ops.tensor import Shape

from .graph import Operator, Quantization, TensorInfo
from .saturation import Range, clamp, held, reach
from .value import BATCH, Axis, Value

MOST_CONSTANT_VALUES = 1 << 22  # of an array that is larger than what it is made from
IMAGES = {"NCHW": (2, 3, 1), "NHWC": (1, 2, 3)}  # the file's axes in the order of a layer


@dataclass
class Layer:
    """One layer of the network to be.

    Arguments:
    - `op`, `inputs`, `shape`: as of a Node.
    - `weights`: arrays by role.
    - `frozen`: roles of weights that the file doesn't have, and that aren't trained.
    - `operator`: name of the operator of the file that it comes from.
    """

    op: Op
    inputs: tuple[str, ...]
    shape: Shape
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    operator: str = ""


class Builder:
    """A network that grows operator by operator.

    Arguments:
    - `name`: of the network.
    - `layout`: "NCHW" or "NHWC": the order of an image's axes in the file, where an operator doesn't say (default
      "NHWC").
    """

    def __init__(self, name: str, layout: str = "NHWC") -> None:
        self.name, self.layout = name, layout
        self.inputs: dict[str, Shape] = {}
        self.layers: dict[str, Layer] = {}
        self.ranges: dict[str, Range] = {}  # of the values of inputs, which are taken as they come, and layers
        self.clamped: list[str] = []  # layers that `saturated` added
        self.cut: list[str] = []  # tensors with ranges that values of the network exceed
        self.notes: list[str] = []  # as of a Translation
        self.operator = Operator("", "layer", (), ())  # being translated; its name becomes the layer's
        self._suffix = ""
        self.repeated: dict[str, tuple[Value, Value]] = {}  # by BroadcastTo: its value, and what it repeats
        self._arranged: dict[tuple[str, tuple[int, ...], tuple[int, ...], Shape], str] = {}

    def input(self, tensor: TensorInfo, name: str = INPUT) -> Value:
        """Declare an input of the network. A vector of known size has no batch: it is one example. Raises FormatError
        for a shape with an open size other than the batch."""
        if not tensor.shape or None in tensor.shape[1:] or tensor.shape == (None,):
            raise FormatError(
                f"Input '{tensor.name}' has the open shape {tensor.shape}: give the sizes of an example with "
                f"input_shape=(height, width, channels)."
            )
        has_batch = len(tensor.shape) > 1
        batch, *rest = tensor.shape if has_batch else (1, *tensor.shape)
        sizes = tuple(int(n) for n in rest if n is not None)
        order = tuple(range(len(sizes)))
        if tensor.layout == "NCHW" and len(sizes) > 1:
            last = len(sizes) - 1
            sizes, order = (*sizes[1:], sizes[0]), (last, *range(last))
        if not sizes or min(sizes) < 1:
            raise FormatError(f"Input '{tensor.name}' has the shape {tensor.shape}: sizes are 1 or more.")
        layer = name if name == INPUT and not self.inputs else self._unique(name)
        self.inputs[layer], self.ranges[layer] = sizes, (0.0, 0.0)
        value = Value.of(layer, sizes, order, batch or 1)
        return value if has_batch else replace(value, axes=value.axes[1:])

    def op(self, kind: str, *args, **config) -> Op:
        """An op by its class name. Raises UnsupportedError if edgelearn doesn't have it."""
        if kind not in Op.registry:
            raise UnsupportedError(f"edgelearn has no {kind}.")
        return Op.registry[kind](*args, **config)

    def shape(self, layer: str) -> Shape:
        return self.inputs[layer] if layer in self.inputs else self.layers[layer].shape

    def add(
        self, op: Op, *inputs: str, name: str = "", weights: Mapping[str, np.ndarray] | None = None,
        frozen: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        """Add a layer and return its name.

        Arguments:
        - `op`: its operation.
        - `inputs`: names of the layers that it reads.
        - `name`: default the operator's.
        - `weights`: arrays by role, all that the op has.
        - `frozen`: as of Layer.

        Raises ShapeError if the op doesn't accept the shapes, FormatError for weights of other shapes.
        """
        op, shapes, weights = op.plain(), [self.shape(layer) for layer in inputs], weights or {}
        shape = op.output_shape(*shapes)
        found = {}
        for role, weight in op.weights(*shapes).items():
            array = weights[role]
            if array.shape != weight.shape:
                raise FormatError(
                    f"{self.operator.kind} '{self.operator.name}': its {role} has shape {array.shape}, expected "
                    f"{weight.shape}. The file is damaged: restore it."
                )
            found[role] = np.ascontiguousarray(array, np.float32)
        name = self._unique(name or self.operator.name + self._suffix)
        self.layers[name] = Layer(op, inputs, shape, found, frozen, self.operator.name)
        self.ranges[name] = reach(op, [self.ranges[layer] for layer in inputs])
        return name

    def constant(self, array: np.ndarray, like: Value) -> Value:
        """Return a constant of the file as a value beside `like`, with as many axes; it isn't trained.

        Raises UnsupportedError if it has a number for each example of the batch, or more axes.
        """
        aligned = finite(array).reshape((1,) * (like.rank - array.ndim) + array.shape)
        batch = like.batch_axis
        if aligned.ndim > like.rank or (batch is not None and aligned.shape[batch] > 1):
            raise UnsupportedError(
                f"A constant of shape {array.shape} with a value of shape {like.shape}.", "Equal sizes."
            )
        order = self.natural_order(like)
        values = in_order(aligned, order)
        shape = values.shape or (1,)
        layer = self.add(Constant(shape), like.layer, weights={"value": values.reshape(shape)}, frozen=("value",),
                         name=f"{self.operator.name}_constant")  # fmt: skip
        return self.view(like, layer, order)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Layers that are added in this block are called OPERATOR_name: the activation in which an operator ends."""
        self._suffix, before = f"_{name}", self._suffix
        try:
            yield
        finally:
            self._suffix = before

    def apply(self, op: Op, x: Value, **settings) -> Value:
        """Add a layer that computes each value by itself, whatever their order."""
        return replace(x, layer=self.add(op, x.layer, **settings), sole=True)

    def saturated(self, x: Value, tensor: str, quantization: Quantization) -> Value:
        """Return `x` as `tensor` holds it in integers: with a clamp, if their range stands for one."""
        limits, values = held(quantization), self.ranges[x.layer]
        if limits is None:
            return x
        op, cuts = clamp(values, limits, float(quantization.scale[0]))
        if op:
            with self.part("range"):
                x = self.apply(op, x)
            self.clamped.append(x.layer)
        elif cuts:
            self.cut.append(tensor)
        self.ranges[x.layer] = (
            limits if x.layer in self.inputs else (max(values[0], limits[0]), min(values[1], limits[1]))
        )
        return x

    def maker(self, x: Value) -> Layer | None:
        """The layer that makes `x`, None for an input of the network."""
        return self.layers.get(x.layer)

    def source(self, layer: str) -> str:
        """The layer whose values `layer` has in the same order, before it was reshaped."""
        while layer in self.layers and isinstance(self.layers[layer].op, Flatten):
            layer = self.layers[layer].inputs[0]
        return layer

    def arrange(self, x: Value, *axes: Axis) -> str:
        """Return a layer of the values of `x` whose axes are these products of its factors; Reshape and Transpose are
        added where the order asks for them.

        Raises UnsupportedError if the axes leave values out, or take the batch for another axis.
        """
        order = tuple(factor for axis in axes for factor in axis)
        if sorted(order) != list(range(len(x.sizes))):
            raise UnsupportedError(f"The batch of {x.shape} is mixed with other axes.", "Keep the batch as first axis.")
        shape = tuple(prod(x.sizes[factor] for factor in axis) for axis in axes)
        key = (x.layer, x.sizes, order, shape)
        if key not in self._arranged:
            layer = x.layer if order == tuple(sorted(order)) else self._transpose(x, order)
            if self.shape(layer) != shape:
                layer = self.add(Reshape(shape), layer, name=f"{layer}_reshape")
            self._arranged[key] = layer
        return self._arranged[key]

    def image(self, x: Value, channels: int) -> str:
        """Return a layer (height, width, channels) of an image or of a sequence (whose height is 1); `channels` is the
        file's axis."""
        return self.laid_out(x, self.image_order(x, channels))

    def like(self, x: Value, layer: str, channels: int) -> Value:
        """Return the value of a layer that was made from `image(x, channels)`."""
        return self.view(x, layer, self.image_order(x, channels))

    def laid_out(self, x: Value, order: Sequence[int | None]) -> str:
        """Return a layer of `x` whose axes are the file's in this order; None adds one of size 1."""
        return self.arrange(x, *(() if axis is None else x.axes[axis] for axis in order))

    def view(self, x: Value, layer: str, order: Sequence[int | None]) -> Value:
        """Return the value of a layer that was made from `laid_out(x, order)`: same axes, sizes of its own."""
        places = {axis: place for place, axis in enumerate(order) if axis is not None}
        new = Value.of(layer, self.shape(layer), tuple(places.get(axis) for axis in range(x.rank)), x.batch)
        axes = ((BATCH,) if axis == x.batch_axis else new.axes[1 + axis] for axis in range(x.rank))
        return replace(new, axes=tuple(axes))

    def image_order(self, x: Value, channels: int) -> list[int | None]:
        """The file's axes as (height, width, channels). Raises UnsupportedError if there are more."""
        channels = x.axis(channels)
        rest = [axis for axis in range(x.rank) if axis not in (channels, x.batch_axis)]
        while len(rest) > 2 and not x.axes[rest[0]]:  # a batch of 1 that the file took for another axis
            rest.pop(0)
        if len(rest) > 2:
            raise UnsupportedError(
                f"It has {len(rest)} axes beside batch and channels.", "Images with 2, sound with 1."
            )
        return [*[None] * (2 - len(rest)), *rest, channels]

    def natural_order(self, x: Value) -> tuple[int, ...]:
        """The file's axes, without the batch, in the order in which a layer of `x` is best made: as its values lie."""
        axes = tuple(axis for axis in range(x.rank) if axis != x.batch_axis)
        known = [IMAGES[self.layout], *IMAGES.values()] if x.rank == 4 and x.batch_axis == 0 else []
        by_place = sorted(axes, key=lambda axis: min(x.axes[axis], default=len(x.sizes)))
        for order in (*known, axes, tuple(by_place)):
            factors = [factor for axis in order for factor in x.axes[axis]]
            if factors == sorted(factors):
                return order
        return known[0] if known else axes

    def _transpose(self, x: Value, order: tuple[int, ...]) -> str:
        """Return a layer whose factors have another order; neighbours that stay neighbours move as one."""
        runs: list[list[int]] = []
        for factor in order:
            if runs and factor == runs[-1][-1] + 1:
                runs[-1].append(factor)
            else:
                runs.append([factor])
        merged = sorted(runs)
        shape = tuple(prod(x.sizes[factor] for factor in run) for run in merged)
        layer = x.layer
        if self.shape(layer) != shape:
            layer = self.add(Reshape(shape), layer, name=f"{layer}_reshape")
        return self.add(Transpose(tuple(1 + merged.index(run) for run in runs)), layer, name=f"{layer}_transpose")

    def output(self, x: Value, channels_first: bool = False) -> str:
        """Return the layer of an output of the network: (height, width, channels) for an image, (length, channels) for
        a sequence of `channels_first`, else the file's axes without the batch and without other axes of size 1 at the
        end."""
        if x.batch_axis not in (0, None) or (x.batch_axis is None and x.batch > 1):
            raise UnsupportedError("An output's batch is not its first axis.", "Keep the batch as first axis.")
        image = x.rank == 4 and x.batch_axis == 0
        order = IMAGES[self.layout] if image else [axis for axis in range(x.rank) if axis != x.batch_axis]
        order = (2, 1) if channels_first and x.rank == 3 and x.batch_axis == 0 else order
        axes = [x.axes[axis] for axis in order]
        return self.arrange(x, *([axis for axis in axes if axis] if len(x.sizes) < 2 else axes)) if x.sizes else x.layer

    def finish(self, outputs: tuple[str, ...]) -> tuple[Network, dict[str, np.ndarray]]:
        """Return the network of what `outputs` need, and its weights."""
        needed, waiting = set[str](), list(outputs)
        while waiting:
            name = waiting.pop()
            if name not in needed and name in self.layers:
                needed.add(name)
                waiting += self.layers[name].inputs
        if not all(name in self.layers for name in outputs):
            raise FormatError("An output is an input or a constant: there is nothing to compute.")
        network, weights, frozen = Network(self.name, self.inputs), {}, set()
        for name, layer in self.layers.items():
            if name in needed:
                network.add(name, layer.op, *layer.inputs)
                arrays = {f"{name}/{role}": array for role, array in layer.weights.items()}
                weights |= arrays
                frozen |= {f"{name}/{role}" for role in layer.frozen}
        network.trainable -= frozen
        if len(outputs) > 1:
            network.outputs = tuple(dict.fromkeys(outputs))
        return network, weights

    def _unique(self, name: str) -> str:
        name = re.sub(r"[^0-9A-Za-z_.\-]+", "_", name).strip("_") or "layer"
        taken = {INPUT, *self.layers, *self.inputs}
        if name not in taken:
            return name
        return next(new for n in range(1, len(taken) + 2) if (new := f"{name}_{n}") not in taken)


def finite(array: np.ndarray) -> np.ndarray:
    """The array with the largest float32 for infinity, as masks hold it: sums and comparisons come to the same."""
    ends = np.finfo(np.float32)
    return np.clip(array, ends.min, ends.max) if array.dtype.kind == "f" else array


def in_order(constant: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """A constant in the order of a layer's axes, without the batch."""
    rest = [axis for axis in range(constant.ndim) if axis not in order]
    return constant.transpose(*rest, *order).reshape([constant.shape[axis] for axis in order])


def check_size(shape: tuple[int, ...], *sources: np.ndarray) -> tuple[int, ...]:
    """Return the shape of a constant that is about to be computed from `sources` (default: from less than it holds).
    Raises FormatError for one that is larger than them and than any that a model needs."""
    most = max(MOST_CONSTANT_VALUES, *(source.size for source in sources), 0)
    if any(n < 0 for n in shape) or prod(shape) > most:
        raise FormatError(f"A constant of shape {shape} is asked for, and the most is {most:,} values.")
    return shape


def filled(shape: tuple[int, ...], value: np.generic | np.ndarray) -> np.ndarray:
    """An array that repeats a value, which takes no memory until it becomes a layer's weights. Raises FormatError where
    these would take more than a quarter of the memory at hand, or than EDGELEARN_CONSTANT_BYTES allows."""
    import psutil

    named = os.environ.get("EDGELEARN_CONSTANT_BYTES", "")
    most = int(named) if named.isdecimal() else psutil.virtual_memory().available // 4
    if any(n < 0 for n in shape) or 4 * prod(shape) > most:
        raise FormatError(
            f"A constant of shape {shape} is asked for, {4 * prod(shape):,} bytes, and the most is {most:,}, a quarter "
            f"of the memory at hand. Allow more with the environment variable EDGELEARN_CONSTANT_BYTES."
        )
    return np.broadcast_to(value, shape)
