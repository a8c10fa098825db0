"""From another framework's graph to a network: `translate` calls a handler an operator, which writes to a `Builder`.

A format has two parts: a function that reads a file into a `ForeignGraph`, and a table of handlers (see `forms`).

>>> HANDLERS = forms({"Relu": "ReLU", "Add": "add"})
>>> translate(read_graph(path), HANDLERS).model_file()

Operands are a `Value` for what the network computes and a NumPy array for what is constant. The functions of
`operators` and `shapes` take both: they add layers for values and compute constants at once.

A `Value` is a layer's output as the file sees it: reshaped and transposed without moving a value. The file's axes are
products of factors of the layer's shape. An NCHW image of 8 x 8 x 16 is a layer of shape (8, 8, 16) with the axes
((BATCH,), (2,), (0,), (1,)); flattened it has the axes ((BATCH,), (2, 0, 1)). A channel shuffle splits a factor in two
and swaps the halves. Only an operator that needs another order of the values makes a layer of it (`Builder.arrange`).

Integers saturate, so converters leave a ReLU or ReLU6 out where the range of a quantized tensor ends in the same
places. Such a clamp becomes a layer. Most ranges are calibrated, though: they end where the examples did. `clamp` tells
the two apart by where a range ends, and by what the values before it can be.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, isnan, prod
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import FormatError, ShapeError, UnsupportedError
from edgelearn.graph import INPUT, Network
from edgelearn.ops import (
    Abs,
    Add,
    BatchNormalization,
    Bias,
    Clip,
    Constant,
    Embedding,
    Exp,
    Flatten,
    GroupNormalization,
    HardSigmoid,
    LayerNormalization,
    LinearOp,
    Log,
    LogSoftmax,
    MatMul,
    Multiply,
    Op,
    Reciprocal,
    ReLU,
    Rescaling,
    Reshape,
    ReverseEmbedding,
    Rsqrt,
    Scale,
    Sigmoid,
    Softmax,
    Softplus,
    Sqrt,
    Square,
    Subtract,
    Sum,
    Tanh,
    Transpose,
)
from edgelearn.ops.tensor import Shape

from .canonical import ForeignGraph, Operator, Problem, StoredIntegers, TensorInfo, unsupported
from .safetensors import ModelFile
from .weights import Weights, not_finite

BATCH = -1
Axis = tuple[int, ...]  # positions in `sizes`, or BATCH; an axis of size 1 is empty


@dataclass(frozen=True)
class Value:
    """An operator's result, or an input of the network.

    Arguments:
    - `layer`: name of the layer that holds the values.
    - `sizes`: factors above 1 of the layer's shape, in the order of memory.
    - `axes`: the file's axes, each a product of factors.
    - `batch`: the file's batch (default 1).
    - `sole`: True while at most one operator reads it.
    """

    layer: str
    sizes: tuple[int, ...]
    axes: tuple[Axis, ...]
    batch: int = 1
    sole: bool = True

    @classmethod
    def of(cls, layer: str, shape: tuple[int, ...], order: tuple[int | None, ...], batch: int = 1) -> Value:
        """A layer of `shape`; `order` has the axis of the layer for each of the file's axes after the batch, None for
        one of size 1 that the layer doesn't have."""
        kept = [axis for axis, n in enumerate(shape) if n > 1]
        axes = tuple((kept.index(axis),) if axis in kept else () for axis in order)
        return cls(layer, tuple(shape[axis] for axis in kept), ((BATCH,), *axes), batch)

    @property
    def shape(self) -> tuple[int, ...]:
        """As in the file, with the batch."""
        return tuple(prod(map(self._size, axis)) for axis in self.axes)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def batch_axis(self) -> int | None:
        """Axis of the batch, None if the file has dropped it or made it a part of another axis."""
        return next((n for n, axis in enumerate(self.axes) if axis == (BATCH,)), None)

    def axis(self, axis: int) -> int:
        """The axis counted from the front."""
        return axis % self.rank

    def transposed(self, order: tuple[int, ...]) -> Value:
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def squeezed(self, axes: tuple[int, ...]) -> Value:
        """Without `axes`, which have size 1."""
        return replace(self, axes=tuple(axis for n, axis in enumerate(self.axes) if n not in axes))

    def inserted(self, axis: int) -> Value:
        """With one more axis of size 1 in front of `axis`, which isn't the batch."""
        return replace(self, axes=(*self.axes[:axis], (), *self.axes[axis:]))

    def expanded(self, axis: int) -> Value:
        """With one more axis of size 1 in front of `axis`."""
        return self.reshaped((*self.shape[:axis], 1, *self.shape[axis:])) or self

    def reshaped(self, shape: tuple[int, ...]) -> Value | None:
        """The same values in `shape`, in the file's order; None if the factors can't be regrouped."""
        queue = [(factor, 0, self._size(factor)) for axis in self.axes for factor in axis]
        axes: list[list[tuple[int, int, int]]] = []
        has_batch = self.batch_axis is not None
        for position, n in enumerate(shape):
            axis: list[tuple[int, int, int]] = []
            while n > 1:
                if not queue:
                    return None
                factor, part, size = queue.pop(0)
                if factor == BATCH and size == 1:
                    continue  # the file drops the batch
                if n % size == 0:
                    axis.append((factor, part, size))
                    n //= size
                elif size % n == 0 and factor != BATCH:
                    axis.append((factor, part, n))
                    queue.insert(0, (factor, part + 1, size // n))
                    n = 1
                else:
                    return None
            if not axis and queue and queue[0][0] == BATCH and self.batch == 1:
                axis = [queue.pop(0)]
            elif not axis and not has_batch and position == 0 and self.batch == 1:
                axis = [(BATCH, 0, 1)]
            axes.append(axis)
        if any(factor != BATCH or size > 1 for factor, _, size in queue):
            return None
        parts = sorted({part for axis in axes for part in axis if part[0] != BATCH})
        found = {part: n for n, part in enumerate(parts)}
        regrouped = tuple(tuple(BATCH if p[0] == BATCH else found[p] for p in axis) for axis in axes)
        return replace(self, sizes=tuple(size for _, _, size in parts), axes=regrouped)

    def _size(self, factor: int) -> int:
        return self.batch if factor == BATCH else self.sizes[factor]


Range = tuple[float, float]  # the lowest and the highest value
Operand = Value | np.ndarray  # of an operator: computed, or a constant
UNIT, POSITIVE = (HardSigmoid, Sigmoid, Softmax), (Abs, Exp, Rsqrt, Softplus, Sqrt, Square)
ANY = (BatchNormalization, Bias, GroupNormalization, LayerNormalization, LinearOp, Log, LogSoftmax, MatMul, Reciprocal,
       Scale, Subtract)  # fmt: skip


def reach(op: Op, inputs: Sequence[Range]) -> Range:
    """Return the range of an op's outputs: infinite, or that of its inputs and 0 for an op that isn't listed here."""
    low, high = min(0.0, *(x[0] for x in inputs)), max(0.0, *(x[1] for x in inputs))
    match op:
        case ReLU():
            return 0.0, high if op.max_value is None else op.max_value
        case Clip():
            return (low if op.min_value is None else op.min_value), (high if op.max_value is None else op.max_value)
        case Tanh():
            return -1.0, 1.0
        case Rescaling():
            ends = sorted(op.scale * end + op.offset for end in inputs[0])
            return ends[0], ends[1]
        case Add():
            return sum(x[0] for x in inputs), sum(x[1] for x in inputs)
        case Multiply():
            (a, b), (c, d) = inputs
            products = [0.0 if isnan(n) else n for n in (a * c, a * d, b * c, b * d)]
            return min(products), max(products)
        case Sum():
            return -inf if low < 0 else 0.0, inf
    if isinstance(op, UNIT):
        return 0.0, 1.0
    if isinstance(op, POSITIVE):
        return 0.0, inf
    return (-inf, inf) if isinstance(op, ANY) else (low, high)


def held(quantization: StoredIntegers) -> Range | None:
    """Return the range of an activation's integers; None for int32 and for several scales, which limit nothing."""
    step, zero = float(quantization.scale[0]), int(quantization.zero_point[0])
    if quantization.scale.size > 1 or quantization.dtype not in ("int8", "uint8", "int16", "uint16") or step <= 0:
        return None
    integers = np.iinfo(quantization.dtype)
    return step * (int(integers.min) - zero), step * (int(integers.max) - zero)


def clamp(values: Range, limits: Range, step: float) -> tuple[Op | None, bool]:
    """Return the clamp that the range of integers stands for, if it does, and whether it cuts values off at all.

    Arguments:
    - `values`: the range of what is computed.
    - `limits`: the range of the integers.
    - `step`: their scale: what lies as near outside is rounded, not cut off.

    It stands for a ReLU if it begins at 0 and values can be negative, for a ReLU6 if it also ends at 6, or ends there
    and no value is negative, and for a Clip if it is from -1 to 1.
    """
    (low, high), is_below, is_above = limits, values[0] < limits[0] - step, values[1] > limits[1] + step
    ends_at_6 = abs(high - 6) < step / 2
    if (is_below and low == 0) or (is_above and ends_at_6 and values[0] >= 0):
        return ReLU(6 if ends_at_6 else high), True
    if (is_below or is_above) and abs(low + 1) < step and abs(high - 1) < step:
        return Clip(-1.0, 1.0), True
    return None, is_below or is_above


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
    - `sources`: the file's arrays that its weights are views of.
    - `again`: the file says that the layer is called a second time.
    """

    op: Op
    inputs: tuple[str, ...]
    shape: Shape
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    operator: str = ""
    sources: tuple[np.ndarray, ...] = ()
    again: bool = False

    @property
    def says_shared(self) -> bool:
        """True if weights in the same memory are shared ones. Exporters merge equal arrays, such as the statistics of
        BatchNorms that were never trained: without a kernel the same memory says nothing."""
        return self.again or any(array.ndim > 1 and array.min() != array.max() for array in self.sources)

    @property
    def identity(self) -> Any:
        """Equal for layers whose weights are the same memory, of one op, or of a table and its products."""
        is_table = isinstance(self.op, Embedding | ReverseEmbedding)
        return (
            Embedding if is_table else self.op,
            self.frozen,
            *((a.ctypes.data, a.shape, a.strides) for a in self.sources),
        )


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
        self.truths: set[str] = set()  # inputs that are 0 and 1
        self.ranges: dict[str, Range] = {}  # of the values of inputs, which are taken as they come, and layers
        self.clamped: list[str] = []  # layers that `saturated` added
        self.cut: list[str] = []  # tensors with ranges that values of the network exceed
        self.notes: list[str] = []  # as of a Translation
        self.readers = Counter[str]()  # how many operators, and outputs of the model, read a tensor of the file
        self.operator = Operator("", "layer", (), ())  # being translated; its name becomes the layer's
        self._suffix = ""
        self.repeated: dict[str, tuple[Value, Value]] = {}  # by BroadcastTo: its value, and what it repeats
        self.masked: dict[
            str, tuple[Value, Value, np.ndarray]
        ] = {}  # by product of truths: it, a value, and a constant
        self.nonzero: dict[str, Value] = {}  # what is compared with 0, by the layer that says where it isn't 0
        self._arranged: dict[tuple[str, tuple[int, ...], tuple[int, ...], Shape], str] = {}

    def input(self, tensor: TensorInfo, name: str = INPUT) -> Value:
        """Declare an input of the network. A vector of known size has no batch: it is one example. Raises FormatError
        for a shape with an open size other than the batch, and for a single number."""
        if tensor.shape == ():
            raise FormatError(
                f"Input '{tensor.name}' has the shape (), one {tensor.dtype} for all examples: give its value, as in "
                f"constants={{'{tensor.name}': 1}}; or input_shape=…, if the file just doesn't tell the shape."
            )
        if not tensor.shape or None in tensor.example or tensor.shape == (None,):
            raise FormatError(
                f"Input '{tensor.name}' has the open shape {tensor.shape}: give the sizes of an example with "
                f"input_shape=(height, width, channels)."
            )
        place = tensor.batch_axis if len(tensor.shape) > 1 else None
        batch, rest = (1, tensor.shape) if place is None else (tensor.shape[place], tensor.example)
        sizes = tuple(int(n) for n in rest if n is not None)
        order = tuple(range(len(sizes)))
        if tensor.layout == "NCHW" and len(sizes) > 1:
            last = len(sizes) - 1
            sizes, order = (*sizes[1:], sizes[0]), (last, *range(last))
        if not sizes or min(sizes) < 1:
            raise FormatError(f"Input '{tensor.name}' has the shape {tensor.shape}: sizes are 1 or more.")
        layer = name if name == INPUT and not self.inputs else self._unique(name)
        self.inputs[layer], self.ranges[layer] = sizes, (0.0, 0.0)
        self.truths.update([layer] if tensor.dtype == "bool" else [])
        value = Value.of(layer, sizes, order, batch or 1)
        first, *others = value.axes
        if place is not None:
            others.insert(place, first)
        return replace(value, axes=tuple(others))

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
        sources, again = tuple(weights[role] for role in found), bool(self.operator.attributes.get("called again"))
        name = self._unique(name or self.operator.name + self._suffix)
        self.layers[name] = Layer(op, inputs, shape, found, frozen, self.operator.name, sources, again)
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

    def apply(self, op: Op, x: Value, order: Sequence[int | None] | None = None, **settings) -> Value:
        """Add a layer that reads `x` with the file's axes in this order (default: as they lie, for an op that computes
        each value by itself)."""
        if order is None:
            return replace(x, layer=self.add(op, x.layer, **settings), sole=True)
        return self.view(x, self.add(op, self.laid_out(x, order), **settings), order)

    def saturated(self, x: Value, tensor: str, quantization: StoredIntegers) -> Value:
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
        together = runs(order, lambda a, z: z == a + 1)
        merged = sorted(together)
        shape = tuple(prod(x.sizes[factor] for factor in run) for run in merged)
        layer = x.layer
        if self.shape(layer) != shape:
            layer = self.add(Reshape(shape), layer, name=f"{layer}_reshape")
        return self.add(Transpose(tuple(1 + merged.index(run) for run in together)), layer, name=f"{layer}_transpose")

    def output(self, x: Value, channels_first: bool = False, alone: bool = False) -> str:
        """Return the layer of an output of the network: (height, width, channels) for an image, (length, channels) for
        a sequence of `channels_first`, else the file's axes without the batch, wherever that lies. One axis larger than
        1 stands by itself, if the batch is the first. `alone`: no other output has this layer."""
        if x.batch_axis is None and x.batch > 1:
            raise UnsupportedError("An output's batch is a part of another axis.", "Keep the batch as an axis.")
        image = x.rank == 4 and x.batch_axis == 0
        order = IMAGES[self.layout] if image else [axis for axis in range(x.rank) if axis != x.batch_axis]
        order = (2, 1) if channels_first and x.rank == 3 and x.batch_axis == 0 else order
        axes = [x.axes[axis] for axis in order]
        if len(x.sizes) < 2 and not x.batch_axis:
            axes = [axis for axis in axes if axis] or [()]
        last = self.maker(x)
        read = any(x.layer in other.inputs for other in self.layers.values())
        if last is None or not isinstance(last.op, Sigmoid) or read or not alone:
            return self.arrange(x, *axes)
        before = self.arrange(replace(x, layer=last.inputs[0]), *axes)  # losses take a Sigmoid at the end as their own
        last.inputs, last.shape = (before,), self.shape(before)
        self.layers[x.layer] = self.layers.pop(x.layer)  # after what it reads
        return x.layer

    def finish(self, outputs: tuple[str, ...]) -> tuple[Network, dict[str, np.ndarray]]:
        """Return the network of what `outputs` need, inputs and layers, and its weights."""
        needed, waiting = set[str](), list(outputs)
        while waiting:
            name = waiting.pop()
            if name not in needed and name in self.layers:
                needed.add(name)
                waiting += self.layers[name].inputs
        if not all(name in self.layers for name in outputs):
            raise FormatError("An output is an input or a constant: there is nothing to compute.")
        read = {name for layer in needed for name in self.layers[layer].inputs}
        inputs = {name: shape for name, shape in self.inputs.items() if name in read} or self.inputs
        self.notes += [f"Nothing reads '{name}': it is left out." for name in self.inputs if name not in inputs]
        network, weights, frozen = Network(self.name, inputs), {}, set()
        owners: dict[Any, str] = {}
        for name, layer in self.layers.items():
            if name in needed:
                if layer.says_shared and (owner := owners.get(layer.identity)):
                    network.add(name, layer.op, *layer.inputs, shares=owner if layer.weights else "")
                    continue
                owners[layer.identity] = network.add(name, layer.op, *layer.inputs)
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


def runs(values: Iterable[int], alike: Callable[[int, int], bool]) -> list[list[int]]:
    """The values in groups of neighbours that belong together."""
    found: list[list[int]] = []
    for value in values:
        if found and alike(found[-1][-1], value):
            found[-1].append(value)
        else:
            found.append([value])
    return found


def with_rank(x: Value, rank: int) -> Value:
    """The value with axes of size 1 in front, until it has so many."""
    return x if x.rank >= rank else with_rank(x.expanded(0), rank)


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


Result = Value | np.ndarray | None | tuple[Value | np.ndarray | None, ...]
Handler = Callable[..., Result]  # handler(builder, operator, *inputs): inputs are values, constants, or None


@dataclass(frozen=True)
class Translation:
    """The result of translating a foreign graph.

    Arguments:
    - `graph`: the file's own operators.
    - `network`: None if there are problems.
    - `weights`: float32 arrays by "layer/role".
    - `layers`: names of the network's layers by name of the operator that they come from; operators that became part of
      another layer, or nothing, have none.
    - `outputs`: layer by name of the tensor that it holds, where it holds one.
    - `problems`: every operator that has no counterpart.
    - `notes`: oddities of the file, and how they were read, as sentences (default none).
    """

    graph: ForeignGraph
    network: Network | None
    weights: Weights
    layers: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, str]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    @property
    def quantization(self) -> dict[str, StoredIntegers]:
        """Scales and zero points that the file has for layers' outputs, by layer."""
        found = {}
        for tensor, layer in self.outputs.items():
            info = self.graph.tensors.get(tensor)
            if info and info.quantization:
                found[layer] = info.quantization
        return found

    def model_file(self) -> ModelFile:
        """The network with its weights. Raises UnsupportedError, which lists all problems, if there are any."""
        if self.network is None:
            raise unsupported(f"'{self.graph.name}' ({self.graph.format})", self.problems)
        metadata = {"imported from": self.graph.format, **self.graph.metadata}
        return ModelFile(
            self.network, self.weights, preprocessing=dict(self.graph.preprocessing),
            class_names=self.graph.class_names, metadata=metadata,
        )  # fmt: skip


def translate(
    graph: ForeignGraph, handlers: Mapping[str, Handler], nearest: Mapping[str, str] | None = None
) -> Translation:
    """Translate operator by operator.

    Arguments:
    - `graph`: what to translate.
    - `handlers`: `handler(builder, operator, *inputs)` by kind; returns the output, or a tuple of outputs.
    - `nearest`: for kinds without a handler, what works instead (default nothing).

    An operator that can't be translated is a problem; those after it are still tried, with the shapes that the file
    tells. Raises FormatError for a damaged graph.
    """
    graph.check_ends()
    walk = _Walk(graph, handlers, nearest or {})
    for tensor in graph.inputs:
        name, shape = tensor.name if len(graph.inputs) > 1 else INPUT, tensor.shape or ()
        walk.found[tensor.name] = walk.once(walk.builder.input(tensor, name), tensor.name)
        if len(shape) > 1 and tensor.batch_axis != 0:
            walk.builder.notes.append(_moved(tensor.name, tensor.batch_axis))
        if len(shape) == 1:
            walk.builder.notes.append(
                f"'{tensor.name}' has the shape {shape}, without a batch: it is read as one example. Give arrays of "
                f"the shape (n, {shape[0]})."
            )
        if tensor.layout == "NCHW" and len(shape) == 3:
            walk.builder.notes.append(
                f"'{tensor.name}' is a sequence, (channels, length) in the file and (length, channels) here."
            )
    walk.run(graph.operators)
    return walk.finish()


class _Walk:
    """The state of a translation: results by tensor, and problems found so far."""

    def __init__(self, graph: ForeignGraph, handlers: Mapping[str, Handler], nearest: Mapping[str, str]) -> None:
        self.graph, self.handlers, self.nearest = graph, handlers, nearest
        self.builder = Builder(graph.name, next((tensor.layout for tensor in graph.inputs if tensor.layout), "NHWC"))
        self.found = ChainMap[str, Operand | None]({name: np.asarray(array) for name, array in graph.constants.items()})
        self.problems: list[Problem] = []
        self.builder.readers = _readers(graph)
        self.unknown: set[str] = set()  # results whose shape isn't known, after a problem

    def run(self, operators: Sequence[Operator]) -> None:
        """Translate operators one after the other."""
        for operator in operators:
            try:
                results = self.chosen(operator) if operator.branches else self.results(operator)
            except (UnsupportedError, ShapeError) as error:
                self.problem(operator, error)
                continue
            results = results if isinstance(results, tuple) else (results,)
            for name, result in zip(operator.outputs, results, strict=False):
                self.found[name] = self.once(result, name)
            self.unknown.update(operator.outputs[len(results) :])

    def chosen(self, op: Operator) -> Result:
        """Return the results of the branch that the first input chooses. Raises UnsupportedError if that is
        computed."""
        condition = self.found.get(op.inputs[0])
        if not isinstance(condition, np.ndarray):
            if op.inputs[0] in self.unknown:
                return ()
            raise UnsupportedError(
                "What it depends on is computed, or missing.",
                "constants={…} for the input that it follows from, or an export without it.",
            )
        branch = op.branches[0 if condition.any() else 1]
        self.builder.readers.update(_readers(branch))
        around, inner = self.found, self.found.new_child(dict(branch.constants))
        self.found = inner
        self.run(branch.operators)
        self.found = around
        lost = [name for name in branch.outputs if name not in inner]
        if lost and self.unknown.isdisjoint(lost):
            raise FormatError(f"{op.kind} '{op.name}': its branch has no tensor '{lost[0]}'. The file is damaged.")
        return () if lost else tuple(inner[name] for name in branch.outputs)

    def results(self, op: Operator) -> Result:
        """Return the results of an operator. Raises UnsupportedError or ShapeError if it can't be translated."""
        b, nearest, tensors = self.builder, self.nearest.get(op.kind, ""), self.graph.tensors
        if state := next((name for name in op.inputs if name in tensors and tensors[name].is_state), ""):
            raise UnsupportedError(
                f"It keeps a state between calls, '{state}', and recurrent state isn't read yet.", nearest
            )
        if op.kind not in self.handlers:
            raise UnsupportedError("edgelearn has no such operator.", nearest)
        missing = [name for name in op.inputs if name and name not in self.found and name not in self.unknown]
        if missing:
            raise FormatError(
                f"{op.kind} '{op.name}' reads '{missing[0]}', which the file doesn't have. It is damaged."
            )
        if not self.unknown.isdisjoint(op.inputs):
            return ()
        b.operator, before = op, len(b.layers)
        try:
            found = self.handlers[op.kind](b, op, *(self.found[name] if name else None for name in op.inputs))
        except (UnsupportedError, ShapeError):
            raise
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{op.kind} '{op.name}' can't be read ({type(error).__name__}: {error!s:.200}). The file is damaged, "
                f"or of a kind that isn't known: check it with its own framework."
            ) from error
        for layer in list(b.layers.values())[before:] if op.frozen else ():
            if layer.operator == op.name:
                layer.frozen = (*layer.frozen, *op.frozen_roles(tuple(layer.weights)))
        return found

    def once(self, result: Operand | None, name: str) -> Operand | None:
        """The result as the tensor `name` holds it, which knows whether more than one operator reads it."""
        if not isinstance(result, Value):
            return None if result is None else np.asarray(result)
        if (info := self.graph.tensors.get(name)) and info.quantization:
            result = self.builder.saturated(result, name, info.quantization)
        return replace(result, sole=result.sole and self.builder.readers[name] <= 1)

    def finish(self) -> Translation:
        b, graph = self.builder, self.graph
        network, weights, layers = None, {}, dict[str, tuple[str, ...]]()
        if not self.problems:
            ends = {name: x for name in graph.outputs if isinstance(x := self.found.get(name), Value)}
            if missing := [name for name in graph.outputs if name not in ends]:
                raise FormatError(f"The output '{missing[0]}' doesn't depend on the inputs: nothing is left to train.")
            b.operator = replace(b.operator, name="output", kind="output")
            b.notes += [_moved(name, x.batch_axis) for name, x in ends.items() if x.batch_axis]
            first = {name for name, info in graph.tensors.items() if info.layout == "NCHW"}
            count = Counter(x.layer for x in ends.values())
            try:
                made = [b.output(x, name in first, count[x.layer] == 1) for name, x in ends.items()]
                network, weights = b.finish(tuple(made))
            except (UnsupportedError, ShapeError) as error:
                self.problem(Operator("output", graph.outputs[0], (), ()), error)
        for name in network.nodes if network else ():
            origin = b.layers[name].operator
            layers[origin] = (*layers.get(origin, ()), name)
        known = {*network.nodes, *b.inputs} if network else set()
        held = {name: x.layer for name, x in self.found.items() if isinstance(x, Value) and x.layer in known}
        notes = (*graph.notes, *b.notes, *_ranges(b), *filter(None, [not_finite(weights)]))
        return Translation(graph, network, weights, layers, held, tuple(self.problems), notes)

    def problem(self, operator: Operator, error: Exception) -> None:
        """Note a problem, and go on after it with the shapes that the file tells."""
        nearest = getattr(error, "nearest", "")
        self.problems.append(Problem(operator.kind, operator.name, operator.attributes, str(error), nearest))
        for name in operator.outputs:
            info = self.graph.tensors.get(name)
            if info is None or not info.shape or None in info.example:
                self.unknown.add(name)
                continue
            layout = "NCHW" if len(info.shape) == 4 and self.builder.layout == "NCHW" else info.layout
            self.found[name] = self.builder.input(replace(info, layout=layout), "stand_in")


def _readers(graph: ForeignGraph) -> Counter[str]:
    """How often each tensor is read."""
    return Counter(graph.outputs) + Counter(name for operator in graph.operators for name in operator.inputs)


def _moved(name: str, axis: int | None) -> str:
    """A note on a tensor of the file whose first axis isn't the batch."""
    if axis is None:
        return f"'{name}' has no axis for the batch: it is read as one example. Give arrays with an axis more in front."
    return f"'{name}' has the batch as axis {axis} in the file, and as first axis here."


def _ranges(b: Builder) -> list[str]:
    """Return notes on the ranges of quantized tensors: which became clamps, which were taken as calibrated."""
    notes = []
    if b.clamped:
        notes.append(
            f"{len(b.clamped)} clamps that the file has in the ranges of its integers alone became layers, such as "
            f"'{b.clamped[0]}'."
        )
    if b.cut:
        notes.append(
            f"The ranges of {plural(len(b.cut), 'tensor')}, such as '{b.cut[0]}', end where values were expected to: "
            f"its own "
            f"runtime cuts off what is outside, and this network doesn't."
        )
    return notes
