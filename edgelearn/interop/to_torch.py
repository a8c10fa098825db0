"""PyTorch's version of a network, a module with the same weights under the same names, and files of its weights.

Images are channels first inside; tensors of other ranks have the network's order of axes.
"""

from __future__ import annotations

import io
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.graph import Network, Node
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Constant,
    Conv2D,
    Conv2DTranspose,
    Coupling,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    LogSoftmax,
    MatMul,
    Max,
    MaxPooling2D,
    Mean,
    Multiply,
    Op,
    Pad,
    PadChannels,
    ReLU,
    Reshape,
    Resize,
    SiLU,
    Slice,
    SliceChannels,
    Softmax,
    SpaceToDepth,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    Sum,
    Take,
    Transpose,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.arithmetic import WithWeight
from edgelearn.ops.pooling import Reduction
from edgelearn.ops.resize import LinearMap
from edgelearn.ops.shapes import positions
from edgelearn.ops.window import Pair, Window

from .pointwise import ACTIVATIONS, ARITHMETIC
from .safetensors import ModelFile
from .state_dict import to_torch_layout, torch_name
from .weights import only_or_all, without_softmax


def _activation(function: Callable[..., torch.Tensor], net: Any, node: Node, x: torch.Tensor) -> torch.Tensor:
    return function(torch, node.op, x)


def _arithmetic(function: Callable[..., torch.Tensor], net: Any, node: Node, *x: torch.Tensor) -> torch.Tensor:
    """Computed with the network's order of axes, where operands have different ones."""
    operands = list(x)
    if isinstance(node.op, WithWeight):
        operands.append(_weight_in_order(net.role(node, node.op.role)))
    elif all(a.shape == x[0].shape for a in x):
        return function(torch, node.op, *x)
    rank = len(node.shape) + 1
    y = function(
        torch, node.op, *(_with_rank(_channels_last(a), rank) for a in operands[: len(x)]), *operands[len(x) :]
    )
    return y.permute(0, 3, 1, 2) if y.ndim == 4 else y


def _weight_in_order(weight: torch.Tensor) -> torch.Tensor:
    """A weight with the network's order of axes."""
    return weight.permute(2, 3, 1, 0) if weight.ndim == 4 else weight.permute(*reversed(range(weight.ndim)))


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def _with_rank(x: torch.Tensor, rank: int) -> torch.Tensor:
    """With sizes of 1 between the batch and an example's axes."""
    return x.reshape(len(x), *(1,) * (rank - x.ndim), *x.shape[1:])


def _relu(net: Any, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, ReLU)
    if node.op.max_value not in (None, 6):
        return F.hardtanh(x, 0.0, node.op.max_value)
    return (F.relu if node.op.max_value is None else F.relu6)(x, inplace=net.overwrites(node))


POINTWISE: dict[type[Op], Callable[..., torch.Tensor]] = {
    **{op: partial(_activation, function) for op, function in ACTIVATIONS.items()},
    **{op: partial(_arithmetic, function) for op, function in ARITHMETIC.items()},
    Add: partial(_arithmetic, lambda m, op, *x: reduce(add, x)),
    ReLU: _relu,
    SiLU: lambda net, node, x: F.silu(x),
}


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Values of an example in the network's order, channels last."""
    return channels_last(x).flatten(1)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """The network's order of axes."""
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """The opposite of `channels_last`."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _reshape(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    return channels_first(_flat(x).reshape(len(x), *node.shape))


def _transpose(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Transpose)
    x = channels_last(x)
    order = positions(node.op.axes, tuple(x.shape[1:]))
    return channels_first(x.permute(0, *(axis + 1 for axis in order)))


def _slice(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Slice)
    x = channels_last(x)
    for axis, r in enumerate(node.op.ranges(tuple(x.shape[1:])), start=1):
        x = x.index_select(axis, r.begin + r.stride * torch.arange(r.size, device=x.device))
    return channels_first(x)


def _pad(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Pad)
    x = channels_last(x)
    if node.op.mode == "constant":
        sides = [side for sides in reversed(node.op.padding) for side in sides]
        return channels_first(F.pad(x, sides, value=node.op.value))
    for axis, sides in enumerate(node.op.padding, start=1):
        places = np.pad(np.arange(x.shape[axis]), sides, node.op.mode)  # pyright: ignore[reportCallIssue, reportArgumentType]
        x = x.index_select(axis, torch.from_numpy(places).to(x.device))
    return channels_first(x)


def _reduction(function: Callable[..., torch.Tensor]) -> Callable[[nn.Module, Node, torch.Tensor], torch.Tensor]:
    def build(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(node.op, Reduction)
        x = channels_last(x)
        axes = [axis + 1 for axis in node.op.reduced(tuple(x.shape[1:]))]
        return channels_first(function(x, axes, keepdim=node.op.keepdims))

    return build


def _slice_channels(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, SliceChannels)
    return x[:, node.op.start : node.op.start + node.op.size]


def _pad_channels(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, PadChannels)
    return F.pad(x, (0, 0) * (x.ndim - 2) + (node.op.before, node.op.after))


def _space_to_depth(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, SpaceToDepth)
    n, channels, height, width = x.shape
    size = node.op.size
    squares = x.reshape(n, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return squares.reshape(n, -1, height // size, width // size)


def _zero_padding(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, ZeroPadding2D)
    vertical, horizontal = node.op.sides
    return F.pad(x, (*horizontal, *vertical))


def _resize(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own function where it has the same convention, else products with matrices."""
    op = node.op._resize((*x.shape[2:], x.shape[1])) if isinstance(node.op, UpSampling2D) else node.op
    assert isinstance(op, Resize)
    mode = TORCH_MODES.get((op.interpolation, op.coordinates, op.rounding if op.selects else ""))
    if mode is None or op.scale is not None:
        return _linear_map(net, node, x)
    return F.interpolate(x, node.shape[:2], **mode)  # type: ignore[arg-type]


def _linear_map(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, LinearMap)
    rows, columns = (torch.from_numpy(m).to(x) for m in node.op.matrices((*x.shape[2:], x.shape[1])))
    return torch.einsum("yh,nchw,xw->ncyx", rows, x, columns)


def _matmul(net: nn.Module, node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return channels_first(channels_last(a) @ channels_last(b))


def _take(net: nn.Module, node: Node, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    x = channels_last(x)
    examples = torch.arange(len(x), device=x.device)[:, None]
    return channels_first(x[examples, numbers.round().long()])


TORCH_MODES = {
    ("bilinear", "half_pixel", ""): {"mode": "bilinear", "align_corners": False},
    ("bilinear", "align_corners", ""): {"mode": "bilinear", "align_corners": True},
    ("nearest", "asymmetric", "floor"): {"mode": "nearest"},
    ("nearest", "half_pixel", "round_prefer_ceil"): {"mode": "nearest-exact"},
}

SHAPES: dict[type[Op], Callable[..., torch.Tensor]] = {
    AdaptiveAveragePooling2D: lambda net, node, x: F.adaptive_avg_pool2d(x, node.shape[:2]),
    Flatten: lambda net, node, x: _flat(x),
    GlobalMaxPooling2D: _reduction(torch.amax),
    MatMul: _matmul,
    Max: _reduction(torch.amax),
    Mean: _reduction(torch.mean),
    Pad: _pad,
    PadChannels: _pad_channels,
    Reshape: _reshape,
    Resize: _resize,
    Slice: _slice,
    SliceChannels: _slice_channels,
    SpaceToDepth: _space_to_depth,
    Sum: _reduction(torch.sum),
    Take: _take,
    Transpose: _transpose,
    UpSampling2D: _resize,
    ZeroPadding2D: _zero_padding,
}


# Ops that compute mirrored images if their input is mirrored.
MIRRORABLE = (
    Add, BatchNormalization, Conv2D, Dense, DepthwiseConv2D, Dropout, GlobalAveragePooling2D, LogSoftmax, Multiply,
    ReLU, Softmax, *ACTIVATIONS,
)  # fmt: skip
# Ops whose backward pass doesn't read their output: the activation behind them may overwrite it.
OVERWRITABLE = (Add, BatchNormalization, Conv2D, Dense, DepthwiseConv2D)


class TorchNetwork(nn.Module):
    """A network as a PyTorch module, for inputs (n, channels, height, width) or (n, features).

    Arguments:
    - `network`: its `trainable` parameters require gradients.
    - `weights`: arrays by name, in the network's layouts; their type is the module's (default: `initialize(0)`).
    - `batchnorm`: `"moving"` normalises with the stored statistics; `"batch"` with those of the batch, and moves the
      stored ones, in layers that are trained. PyTorch moves variances by n / (n - 1) times the batch's.
    - `logits`: leave a Softmax or LogSoftmax at an output out.
    - `mirrored`: compute on images mirrored both ways, where that saves padding passes. PyTorch pads convolutions alike
      on all sides, "same" at stride 2 only below and to the right; in a mirrored image that is above and to the left,
      which comes to the same as both. `encode` and `decode` then mirror, too.
    - `matrix_products`: compute 1 x 1 convolutions as matrix products over pixels.

    Raises FormatError for an op that has no counterpart here.
    """

    def __init__(
        self,
        network: Network,
        weights: Mapping[str, np.ndarray] | None = None,
        batchnorm: Literal["moving", "batch"] = "moving",
        logits: bool = False,
        mirrored: bool = False,
        matrix_products: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.batchnorm, self.matrix_products = network, batchnorm, matrix_products
        self.nodes, self._ends = (
            without_softmax(network) if logits else (list(network.nodes.values()), network.outputs)
        )  # fmt: skip
        for node in self.nodes:
            _handler(node.op)
        self.mirrored = mirrored and _mirroring_helps(network)
        self._attributes: dict[str, str] = {}
        weights = network.initialize(0) if weights is None else weights
        for number, (name, parameter) in enumerate(network.parameters.items()):
            attribute = self._attributes[name] = f"{re.sub(r'[^0-9A-Za-z]', '_', name)}_{number}"
            tensor = self._to_torch(name, weights[name])
            if parameter.weight.trainable:
                self.register_parameter(attribute, nn.Parameter(tensor, requires_grad=name in network.trainable))
            else:
                self.register_buffer(attribute, tensor)

    def encode(self, x: np.ndarray) -> torch.Tensor:
        """Arrays (n, height, width, channels) as the module takes them; others as they are."""
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        if tensor.ndim != 4:
            return tensor
        return (tensor.flip((1, 2)) if self.mirrored else tensor).permute(0, 3, 1, 2)

    def decode(self, tensor: torch.Tensor) -> np.ndarray:
        """Outputs, or gradients of inputs, as (n, height, width, channels); others as they are."""
        tensor = tensor.detach()
        if tensor.ndim == 4:
            tensor = tensor.permute(0, 2, 3, 1)
            tensor = tensor.flip((1, 2)) if self.mirrored else tensor
        return tensor.numpy()

    def forward(self, x: Any) -> Any:
        """Compute the network: tensors, or dictionaries by name of several inputs and outputs."""
        values: dict[str, torch.Tensor] = dict(x) if isinstance(x, dict) else {next(iter(self.network.inputs)): x}
        self._compute(self.nodes, values)
        return only_or_all({name: values[end] for name, end in zip(self.network.outputs, self._ends, strict=True)})

    def run(self, nodes: Sequence[Node], x: torch.Tensor) -> torch.Tensor:
        """Compute some layers in a row; `x` is the one tensor that they read from outside."""
        values = {nodes[0].inputs[0]: x}
        self._compute(nodes, values)
        return values[nodes[-1].name]

    def _compute(self, nodes: Sequence[Node], values: dict[str, torch.Tensor]) -> None:
        for node in nodes:
            values[node.name] = _handler(node.op)(self, node, *(values[name] for name in node.inputs))

    def weights(self) -> dict[str, np.ndarray]:
        """All weights by name, in the network's layouts."""
        return {name: self._from_torch(name, self.tensor(name)) for name in self._attributes}

    def gradients(self) -> dict[str, np.ndarray]:
        """Gradients of the trainable weights by name, in the network's layouts; those that have none yet are left
        out."""
        found = {name: self.tensor(name).grad for name in self._attributes}
        return {name: self._from_torch(name, gradient) for name, gradient in found.items() if gradient is not None}

    def tensor(self, name: str) -> torch.Tensor:
        """A weight by its name in the network."""
        return getattr(self, self._attributes[name])

    def role(self, node: Node, role: str) -> torch.Tensor | None:
        """A weight of a layer, None where the layer has none of this role."""
        name = f"{node.name}/{role}"
        return self.tensor(name) if name in self._attributes else None

    def overwrites(self, node: Node) -> bool:
        """True where an activation may overwrite its input."""
        before = self.network.nodes.get(node.inputs[0])
        if before is None or type(before.op) not in OVERWRITABLE or before.shape != node.shape:
            return False
        return self.network.consumers(before.name) == [node]

    def _to_torch(self, name: str, array: np.ndarray) -> torch.Tensor:
        order = self._order(name)
        tensor = torch.from_numpy(np.array(array.transpose(order), order="C"))
        return tensor.flip((2, 3)).contiguous() if self._is_mirrored(tensor) else tensor

    def _from_torch(self, name: str, tensor: torch.Tensor) -> np.ndarray:
        tensor = tensor.detach()
        tensor = tensor.flip((2, 3)) if self._is_mirrored(tensor) else tensor
        return np.ascontiguousarray(tensor.numpy().transpose(np.argsort(self._order(name))))

    def _is_mirrored(self, tensor: torch.Tensor) -> bool:
        return self.mirrored and tensor.ndim == 4

    def _order(self, name: str) -> tuple[int, ...]:
        """The axes of the network's array in PyTorch's order."""
        parameter = self.network.parameters[name]
        axes = len(parameter.weight.shape)
        if axes == 4:
            inputs_first = isinstance(self.network.nodes[parameter.layer].op, DepthwiseConv2D | Conv2DTranspose)
            return (2, 3, 0, 1) if inputs_first else (3, 2, 0, 1)
        return tuple(reversed(range(axes)))  # matrices are transposed


def to_torch(network: Network, weights: Mapping[str, np.ndarray] | None = None, **settings: Any) -> TorchNetwork:
    """The network as a PyTorch module; arguments as of `TorchNetwork`."""
    return TorchNetwork(network, weights, **settings)


def _mirroring_helps(network: Network) -> bool:
    """True where a mirrored image needs fewer padding passes, and every op can be mirrored."""
    if any(type(node.op) not in MIRRORABLE for node in network.nodes.values()):
        return False
    windows = [
        node.op.window(*network.input_shapes(node.inputs))
        for node in network.nodes.values()
        if isinstance(node.op, Conv2D | DepthwiseConv2D)
    ]
    pads = [_mirror(window) for window in windows]
    if any(pad is None for pad in pads):
        return False
    plain = sum(_sides(window, window.padding) is None for window in windows)
    return sum(_sides(w, pad) is None for w, pad in zip(windows, pads, strict=True) if pad) < plain


def _mirror(window: Window) -> tuple[Pair, Pair] | None:
    """Padding with which the window sees the same pixels of a mirrored image; None where there is none."""
    pads = []
    size = zip((window.height, window.width), window.kernel, window.strides, window.dilation, window.padding,
               window.output, strict=True)  # fmt: skip
    for n, kernel, stride, dilation, (low, high), count in size:
        unseen = n + low + high - (kernel - 1) * dilation - 1 - (count - 1) * stride
        if high < unseen:
            return None
        pads.append((high - unseen, low))
    return pads[0], pads[1]


def _sides(window: Window, padding: tuple[Pair, Pair]) -> list[int] | None:
    """The same padding on both sides of each axis that leads to the same output; None where there is none."""
    size = zip((window.height, window.width), window.kernel, window.strides, window.dilation, padding, window.output,
               strict=True)  # fmt: skip
    for n, kernel, stride, dilation, (low, _), count in size:
        if (n + 2 * low - (kernel - 1) * dilation - 1) // stride + 1 != count:
            return None
    return [low for low, _ in padding]


def _padded(x: torch.Tensor, window: Window, padding: tuple[Pair, Pair], value: float = 0.0):
    """(input, padding that is left to the op): padded here where the op can't."""
    sides = _sides(window, padding)
    if sides is not None:
        return x, sides
    return F.pad(x, (*padding[1], *padding[0]), value=value), [0, 0]


def _convolution(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    op = node.op
    assert isinstance(op, Conv2D | DepthwiseConv2D)
    kernel, bias = net.role(node, "kernel"), net.role(node, "bias")
    assert kernel is not None
    groups = x.shape[1] if isinstance(op, DepthwiseConv2D) else op.groups
    if isinstance(op, DepthwiseConv2D):
        kernel = kernel.flatten(0, 1)[:, None]
    window = op.window(*net.network.input_shapes(node.inputs))
    if net.matrix_products and window.is_pointwise and groups == 1:
        return F.linear(x.permute(0, 2, 3, 1), kernel.flatten(1), bias).permute(0, 3, 1, 2)
    padding = (_mirror(window) or window.padding) if net.mirrored else window.padding
    x, sides = _padded(x, window, padding)
    return F.conv2d(x, kernel, bias, window.strides, sides, window.dilation, groups)


def _transposed_convolution(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    """In full, and cut to size."""
    op = node.op
    assert isinstance(op, Conv2DTranspose)
    kernel, bias = net.role(node, "kernel"), net.role(node, "bias")
    assert kernel is not None
    window = op.window(*net.network.input_shapes(node.inputs))
    (top, _), (left, _) = window.padding
    reach = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilation, strict=True)]
    if op.groups > 1:  # filters of a group beside its channels
        filters = kernel.shape[1] // op.groups
        kernel = kernel.unflatten(1, (op.groups, filters)).movedim(1, 0).flatten(0, 1)
    full = [(n - 1) * s + r for n, s, r in zip(x.shape[2:], window.strides, reach, strict=True)]
    more = [max(0, start + n - m) for start, n, m in zip((top, left), (window.height, window.width), full, strict=True)]
    y = F.conv_transpose2d(x, kernel, bias, window.strides, 0, more, op.groups, window.dilation)
    return y[:, :, top : top + window.height, left : left + window.width]


def _batchnorm(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    op, shape = node.op, x.shape
    assert isinstance(op, BatchNormalization)
    if isinstance(op, SubSpectralNormalization):  # a sub-band of a channel is a channel of its own
        x = x.reshape(len(x), -1, shape[2] // op.sub_bands, shape[3])
    gamma, beta, mean, variance = (
        net.tensor(f"{node.name}/{role}").view(-1) for role in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    trained = any(f"{node.name}/{role}" in net.network.trainable for role in ("gamma", "beta"))
    batch = net.batchnorm == "batch" and net.training and trained
    return F.batch_norm(x, mean, variance, gamma, beta, batch, 1 - op.momentum, op.epsilon).reshape(shape)


def _example_normalization(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    op = node.op
    assert isinstance(op, LayerNormalization | GroupNormalization)
    shape = op.weight_shape(node.shape)
    gamma, beta = (
        x.new_full(shape, start) if weight is None else weight.permute(*reversed(range(weight.ndim)))
        for weight, start in ((net.role(node, "gamma"), 1.0), (net.role(node, "beta"), 0.0))
    )
    if isinstance(op, LayerNormalization):
        return channels_first(F.layer_norm(channels_last(x), shape, gamma, beta, op.epsilon))
    first = x if x.ndim == 4 else x.movedim(-1, 1)
    y = F.group_norm(first, op.sets(node.shape)[1], gamma, beta, op.epsilon)
    return y if x.ndim == 4 else y.movedim(1, -1)


def _local_response(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own function for images and odd sizes, where definitions agree."""
    op = node.op
    assert isinstance(op, LocalResponseNormalization)
    if x.ndim == 4 and op.size % 2:
        return F.local_response_norm(x, op.size, op.factor * op.size, op.beta, op.bias)
    x = channels_last(x)
    windows = torch.from_numpy(op.windows(node.shape[-1])).to(x)
    return channels_first(x * (op.bias + op.factor * x**2 @ windows.T) ** -op.beta)


def _constant(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    value = net.role(node, "value")
    assert value is not None
    value = value.permute(*reversed(range(value.ndim))) if value.ndim != 4 else value.permute(2, 3, 1, 0)
    return channels_first(value.expand(len(x), *value.shape))


def _coupling(net: TorchNetwork, node: Node, x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Coupling)
    return x + (_rounded(f, node.op.step) if node.op.step else f)


def _rounded(x: torch.Tensor, step: float) -> torch.Tensor:
    """Multiples of `step`; gradients pass through."""
    return x + (torch.round(x / step) * step - x).detach()


def _max_pooling(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, MaxPooling2D)
    window = node.op.window(*net.network.input_shapes(node.inputs))
    x, sides = _padded(x, window, window.padding, -torch.inf)
    return F.max_pool2d(x, window.kernel, window.strides, sides)


def _average_pooling(net: TorchNetwork, node: Node, x: torch.Tensor) -> torch.Tensor:
    """Padding counts neither in the sum nor in the number of pixels."""
    assert isinstance(node.op, AveragePooling2D)
    window = node.op.window(*net.network.input_shapes(node.inputs))
    vertical, horizontal = window.padding
    x, inside = (F.pad(a, (*horizontal, *vertical)) for a in (x, torch.ones_like(x[:1, :1])))
    return F.avg_pool2d(x, window.kernel, window.strides) / F.avg_pool2d(inside, window.kernel, window.strides)


HANDLERS: dict[type[Op], Callable[..., torch.Tensor]] = {
    **POINTWISE,
    **SHAPES,
    AveragePooling2D: _average_pooling,
    BatchNormalization: _batchnorm,
    Concatenate: lambda net, node, *x: torch.cat(x, 1),
    Constant: _constant,
    Conv2D: _convolution,
    Conv2DTranspose: _transposed_convolution,
    Coupling: _coupling,
    Dense: lambda net, node, x: F.linear(x, net.role(node, "kernel"), net.role(node, "bias")),
    DepthwiseConv2D: _convolution,
    Embedding: lambda net, node, x: F.embedding(x.round().long(), net.role(node, "embeddings").T),
    Dropout: lambda net, node, x: F.dropout(x, node.op.rate, net.training),
    GroupNormalization: _example_normalization,
    LayerNormalization: _example_normalization,
    LocalResponseNormalization: _local_response,
    GlobalAveragePooling2D: lambda net, node, x: x.mean((2, 3)),
    MaxPooling2D: _max_pooling,
    LogSoftmax: lambda net, node, x: F.log_softmax(x, 1 if x.ndim == 4 else -1),
    Softmax: lambda net, node, x: F.softmax(x, 1 if x.ndim == 4 else -1),
    SpatialDropout2D: lambda net, node, x: F.dropout2d(x, node.op.rate, net.training),
    Stream: lambda net, node, x: _rounded(x, node.op.step),
    SubSpectralNormalization: _batchnorm,
}


def _handler(op: Op) -> Callable[..., torch.Tensor]:
    if type(op) not in HANDLERS:
        raise FormatError(f"PyTorch's version of a network has no {type(op).__name__}: leave PyTorch out for this one.")
    return HANDLERS[type(op)]


def write_state_dict(path: str | Path, file: ModelFile) -> None:
    """Write a state dict for modules whose layers are called as the network's: "conv1.weight", "bn.running_mean".
    `torch.load(path, weights_only=True)` reads it; its `_metadata["edgelearn"]` has class names and preprocessing.

    A linear layer after a Flatten has PyTorch's order of features, in which channels come first.

    Raises FormatError where that order can't be told, RunError if the file can't be written.
    """
    arrays = {torch_name(name): to_torch_layout(file.network, name, array) for name, array in file.weights.items()}
    state = OrderedDict((name, torch.from_numpy(array)) for name, array in arrays.items())
    state._metadata = {"": {"version": 1}, "edgelearn": {"version": 2, **file.texts()}}  # type: ignore[attr-defined]
    content = io.BytesIO()
    torch.save(state, content)
    atomic.write_bytes(path, content.getvalue())
