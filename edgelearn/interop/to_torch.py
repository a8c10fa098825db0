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
from edgelearn.graph import Network, Node
from edgelearn.ops import (
    GRU,
    LSTM,
    AdaptiveAveragePooling2D,
    Add,
    Attention,
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
    GlobalAveragePooling2D,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    LogSoftmax,
    MatMul,
    MaxPooling2D,
    Multiply,
    Op,
    PadChannels,
    ReLU,
    Resize,
    ReverseEmbedding,
    RMSNormalization,
    RotaryEmbedding,
    SiLU,
    SliceChannels,
    Softmax,
    SpatialDropout2D,
    Stream,
    SubSpectralNormalization,
    Take,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.arithmetic import WithWeight
from edgelearn.ops.elementwise import Activation
from edgelearn.ops.sequences import OVER_STEPS
from edgelearn.ops.window import Pair, Window

from .exporting import MOVING, ExportedLayer, handler
from .safetensors import ModelFile
from .state_dict import to_torch_layout, torch_name
from .weights import only_or_all, without_softmax

# Ops that compute mirrored images if their input is mirrored, besides activations.
MIRRORABLE = (
    Add, BatchNormalization, Conv2D, Dense, DepthwiseConv2D, Dropout, GlobalAveragePooling2D, LogSoftmax, Multiply,
    Softmax,
)  # fmt: skip
# Ops whose backward pass doesn't read their output: the activation after them may overwrite it.
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
        self.nodes, self._ends = without_softmax(network) if logits else ([*network.nodes.values()], network.outputs)
        self._layers = {node.name: ExportedLayer.of(network, node) for node in self.nodes}
        self._handlers = {node.name: handler(node.op, HANDLERS, _formula, "PyTorch") for node in self.nodes}
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
            inputs = (values[name] for name in node.inputs)
            values[node.name] = self._handlers[node.name](self, self._layers[node.name], *inputs)

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

    def role(self, layer: ExportedLayer, role: str) -> Any:
        """A weight of a layer, None where the layer has none of this role."""
        name = f"{layer.owner}/{role}"
        return self.tensor(name) if name in self._attributes else None

    def overwrites(self, layer: ExportedLayer) -> bool:
        """True where an activation may overwrite its input."""
        node = self.network.nodes[layer.name]
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
    if not all(isinstance(node.op, Activation) or type(node.op) in MIRRORABLE for node in network.nodes.values()):
        return False
    nodes = [node for node in network.nodes.values() if isinstance(node.op, Conv2D | DepthwiseConv2D)]
    windows = [ExportedLayer.of(network, node).window for node in nodes]
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


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """The network's order of axes."""
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """The opposite of `channels_last`."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _weight(net: TorchNetwork, layer: ExportedLayer, role: str) -> torch.Tensor:
    """A weight with the network's order of axes."""
    weight = net.role(layer, role)
    return weight.permute(2, 3, 1, 0) if weight.ndim == 4 else weight.permute(*reversed(range(weight.ndim)))


def _formula(net: TorchNetwork, layer: ExportedLayer, *x: torch.Tensor) -> torch.Tensor:
    """Computed with the network's order of axes, where operands have different ones."""
    if isinstance(layer.op, Activation):
        return layer.op.formula(torch, *x)
    return _arithmetic(layer.op.formula, net, layer, *x)


def _arithmetic(
    function: Callable[..., torch.Tensor], net: TorchNetwork, layer: ExportedLayer, *x: torch.Tensor
) -> torch.Tensor:
    weights = [_weight(net, layer, layer.op.role)] if isinstance(layer.op, WithWeight) else []
    combine = function if isinstance(layer.op, Add) else partial(function, torch)
    if len(x) > 1 and all(a.shape == x[0].shape for a in x):
        return combine(*x)
    ordered = (channels_last(a) for a in x)  # with sizes of 1 between the batch and an example's axes
    aligned = (a.reshape(len(a), *(1,) * (len(layer.shape) + 1 - a.ndim), *a.shape[1:]) for a in ordered)
    return channels_first(combine(*aligned, *weights))


class _Moves:
    """The methods of an InferenceGraph that its handlers of ops that move or reduce values call."""

    def reshape(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return channels_first(channels_last(x).flatten(1).reshape(len(x), *shape))

    def transpose(self, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        return channels_first(channels_last(x).permute(*order))

    def slice(self, x: torch.Tensor, *ranges: Sequence[int]) -> torch.Tensor:
        x = channels_last(x)
        for axis, (start, size, step) in enumerate(zip(*ranges, strict=True), start=1):
            x = x.index_select(axis, start + step * torch.arange(size, device=x.device))
        return channels_first(x)

    def pad(self, x: torch.Tensor, sides: Sequence[Pair], value: float, mode: str) -> torch.Tensor:
        x = channels_last(x)
        if mode == "constant":
            return channels_first(F.pad(x, [n for pair in reversed(sides[1:]) for n in pair], value=value))
        for axis, pair in enumerate(sides[1:], start=1):
            places = np.pad(np.arange(x.shape[axis]), pair, mode)  # type: ignore[call-overload]
            x = x.index_select(axis, torch.from_numpy(places).to(x.device))
        return channels_first(x)

    def reduce(self, kind: str, x: torch.Tensor, axes: Sequence[int], keep: bool) -> torch.Tensor:
        function = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}[kind]
        return channels_first(function(channels_last(x), axes, keepdim=keep))


MOVES = _Moves()


def _convolution(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    window, kernel, bias = layer.window, net.role(layer, "kernel"), net.role(layer, "bias")
    depthwise = isinstance(layer.op, DepthwiseConv2D)
    groups = x.shape[1] if depthwise else layer.op.groups
    kernel = kernel.flatten(0, 1)[:, None] if depthwise else kernel
    if net.matrix_products and window.is_pointwise and groups == 1:
        return F.linear(x.permute(0, 2, 3, 1), kernel.flatten(1), bias).permute(0, 3, 1, 2)
    x, sides = _padded(x, window, (_mirror(window) or window.padding) if net.mirrored else window.padding)
    return F.conv2d(x, kernel, bias, window.strides, sides, window.dilation, groups)


def _transposed_convolution(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    """In full, and cut to size."""
    window, groups, kernel = layer.window, layer.op.groups, net.role(layer, "kernel")
    (top, _), (left, _) = window.padding
    reach = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilation, strict=True)]
    if groups > 1:  # filters of a group beside its channels
        kernel = kernel.unflatten(1, (groups, kernel.shape[1] // groups)).movedim(1, 0).flatten(0, 1)
    full = [(n - 1) * s + r for n, s, r in zip(x.shape[2:], window.strides, reach, strict=True)]
    more = [max(0, start + n - m) for start, n, m in zip((top, left), (window.height, window.width), full, strict=True)]
    y = F.conv_transpose2d(x, kernel, net.role(layer, "bias"), window.strides, 0, more, groups, window.dilation)
    return y[:, :, top : top + window.height, left : left + window.width]


class _AsImages:
    """A network whose layers on sequences have kernels of images of height 1."""

    def __init__(self, net: TorchNetwork) -> None:
        self.net = net

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def role(self, layer: ExportedLayer, role: str) -> Any:
        weight = self.net.role(layer, role)
        if role != "kernel":
            return weight
        inputs_first = isinstance(layer.op, DepthwiseConv2D | Conv2DTranspose)
        return (weight.permute(1, 0, 2) if inputs_first else weight).unsqueeze(2)


def _over_steps(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    image = layer.as_image
    handle = handler(image.op, HANDLERS, _formula, "PyTorch")
    y = handle(_AsImages(net), image, channels_first(x[:, None]))
    return channels_last(y)[:, 0] if y.ndim == 4 else y


def _attention(net: TorchNetwork, layer: ExportedLayer, *inputs: torch.Tensor) -> torch.Tensor:
    op, size = layer.op, layer.shape[-1] // layer.op.heads
    q, k, v = (x.unflatten(2, (-1, size)).transpose(1, 2) for x in inputs[:3])
    k, v = (x.repeat_interleave(op.shared, 1) for x in (k, v))
    sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    sees = (sees.tril() if op.causal else sees)[None, None]
    if len(inputs) > 3:
        sees = sees & (inputs[3] != 0)[:, None, None]
    y = F.scaled_dot_product_attention(q, k, v, sees, scale=op.factor(layer.shape[-1]))
    return torch.where(sees.any(-1, keepdim=True), y, 0).transpose(1, 2).flatten(2)


def _rotary(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    cosine, sine, partner = map(torch.from_numpy, layer.op.tables(*layer.shape))
    return x * cosine.to(x) + x[..., partner] * sine.to(x)


def _recurrent(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Step by step; gradients go no further back than `truncate` says."""
    op, gates = layer.op, layer.op.gates
    kernel, recurrent = net.role(layer, "kernel"), net.role(layer, "recurrent_kernel")
    bias = net.role(layer, "bias")
    both = [None, None] if bias is None else [bias, None] if op.biases == 1 else bias.T
    mask = next((a for a in others if a.ndim == 2), None)
    state = next((a for a in others if a.ndim == 3), x.new_zeros(len(x), op.sets, op.units))
    states = []
    for step, place in enumerate(op.places(x.shape[1])):
        if op.truncate and step and step % op.truncate == 0:
            state = state.detach()
        of_input = F.linear(x[:, place], kernel, both[0]).chunk(gates, 1)
        of_state = F.linear(state[:, 0], recurrent, both[1]).chunk(gates, 1)
        after = torch.stack(op.cell(torch, of_input, of_state, state.unbind(1)), 1)
        state = after if mask is None else torch.where((mask[:, place] != 0)[:, None, None], after, state)
        states.append(state)
    if not op.return_sequences:
        return state if op.return_state else state[:, 0]
    y = torch.stack(states, 1)[:, :, 0]
    return torch.cat([y, state], 1) if op.return_state else y


def _batchnorm(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    op, shape = layer.op, x.shape
    if isinstance(op, SubSpectralNormalization):  # a sub-band of a channel is a channel of its own
        x = x.reshape(len(x), -1, shape[2] // op.sub_bands, shape[3])
    gamma, beta, mean, variance = (
        net.role(layer, role).view(-1) for role in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    trained = any(f"{layer.owner}/{role}" in net.network.trainable for role in ("gamma", "beta"))
    batch = net.batchnorm == "batch" and net.training and trained
    x = x.movedim(-1, 1) if x.ndim == 3 else x  # of sequences
    y = F.batch_norm(x, mean, variance, gamma, beta, batch, 1 - op.momentum, op.epsilon)
    return y.movedim(1, -1) if y.ndim == 3 else y.reshape(shape)


def _example_normalization(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    op = layer.op
    shape = op.weight_shape(layer.shape)
    gamma, beta = (
        x.new_full(shape, start) if net.role(layer, role) is None else _weight(net, layer, role)
        for role, start in (("gamma", 1.0), ("beta", 0.0))
    )
    if isinstance(op, RMSNormalization):
        return channels_first(F.rms_norm(channels_last(x), shape, gamma, op.epsilon) + (beta if op.center else 0))
    if isinstance(op, LayerNormalization):
        return channels_first(F.layer_norm(channels_last(x), shape, gamma, beta, op.epsilon))
    first = x if x.ndim == 4 else x.movedim(-1, 1)
    y = F.group_norm(first, op.sets(layer.shape)[1], gamma, beta, op.epsilon)
    return y if x.ndim == 4 else y.movedim(1, -1)


def _local_response(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own function for images and odd sizes, where definitions agree."""
    op = layer.op
    if x.ndim == 4 and op.size % 2:
        return F.local_response_norm(x, op.size, op.factor * op.size, op.beta, op.bias)
    x = channels_last(x)
    windows = torch.from_numpy(op.windows(layer.shape[-1])).to(x)
    return channels_first(x * (op.bias + op.factor * x**2 @ windows.T) ** -op.beta)


def _constant(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    value = _weight(net, layer, "value")
    return channels_first(value.expand(len(x), *value.shape))


def _rounded(x: torch.Tensor, step: float) -> torch.Tensor:
    """Multiples of `step`; gradients pass through."""
    return x + (torch.round(x / step) * step - x).detach() if step else x


def _max_pooling(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    window = layer.window
    x, sides = _padded(x, window, window.padding, -torch.inf)
    return F.max_pool2d(x, window.kernel, window.strides, sides)


def _average_pooling(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    """Padding counts neither in the sum nor in the number of pixels."""
    kernel, strides, (vertical, horizontal) = layer.window.kernel, layer.window.strides, layer.window.padding
    x, inside = (F.pad(a, (*horizontal, *vertical)) for a in (x, torch.ones_like(x[:1, :1])))
    return F.avg_pool2d(x, kernel, strides) / F.avg_pool2d(inside, kernel, strides)


def _relu(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    most = layer.op.max_value
    if most not in (None, 6):
        return F.hardtanh(x, 0.0, most)
    return (F.relu if most is None else F.relu6)(x, inplace=net.overwrites(layer))


TORCH_MODES = {
    ("bilinear", "half_pixel", ""): {"mode": "bilinear", "align_corners": False},
    ("bilinear", "align_corners", ""): {"mode": "bilinear", "align_corners": True},
    ("nearest", "asymmetric", "floor"): {"mode": "nearest"},
    ("nearest", "half_pixel", "round_prefer_ceil"): {"mode": "nearest-exact"},
}


def _resize(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own function where it has the same convention, else products with matrices."""
    op = layer.op.as_resize(layer.shapes[0]) if isinstance(layer.op, UpSampling2D) else layer.op
    mode = TORCH_MODES.get((op.interpolation, op.coordinates, op.rounding if op.selects else ""))
    if mode is not None and op.scale is None:
        return F.interpolate(x, layer.shape[:2], **mode)  # type: ignore[arg-type]
    rows, columns = (torch.from_numpy(matrix).to(x) for matrix in layer.op.matrices(layer.shapes[0]))
    return torch.einsum("yh,nchw,xw->ncyx", rows, x, columns)


def _zero_padding(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor) -> torch.Tensor:
    vertical, horizontal = layer.op.sides
    return F.pad(x, (*horizontal, *vertical))


def _take(net: TorchNetwork, layer: ExportedLayer, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    x, examples = channels_last(x), torch.arange(len(x), device=x.device)[:, None]
    return channels_first(x[examples, numbers.round().long()])


def _axis(x: torch.Tensor) -> int:
    return 1 if x.ndim == 4 else -1


# Computations by op; those that have a formula need no entry.
HANDLERS: dict[type[Op], Callable[..., torch.Tensor]] = {
    **{op: partial(lambda handle, net, layer, x: handle(MOVES, layer, x), MOVING[op]) for op in MOVING},
    **dict.fromkeys(OVER_STEPS, _over_steps),
    Attention: _attention,
    GRU: _recurrent,
    LSTM: _recurrent,
    Add: partial(_arithmetic, lambda *x: reduce(add, x)),
    AdaptiveAveragePooling2D: lambda net, layer, x: F.adaptive_avg_pool2d(x, layer.shape[:2]),
    AveragePooling2D: _average_pooling,
    BatchNormalization: _batchnorm,
    Concatenate: lambda net, layer, *x: torch.cat(x, _axis(x[0])),
    Constant: _constant,
    Conv2D: _convolution,
    Conv2DTranspose: _transposed_convolution,
    Coupling: lambda net, layer, x, f: x + _rounded(f, layer.op.step),
    Dense: lambda net, layer, x: channels_first(
        F.linear(channels_last(x), net.role(layer, "kernel"), net.role(layer, "bias"))
    ),
    DepthwiseConv2D: _convolution,
    Dropout: lambda net, layer, x: F.dropout(x, layer.op.rate, net.training),
    Embedding: lambda net, layer, x: F.embedding(x.round().long(), net.role(layer, "embeddings").T),
    GlobalAveragePooling2D: lambda net, layer, x: x.mean((2, 3)),
    GroupNormalization: _example_normalization,
    LayerNormalization: _example_normalization,
    LocalResponseNormalization: _local_response,
    LogSoftmax: lambda net, layer, x: F.log_softmax(x, _axis(x)),
    MatMul: lambda net, layer, a, b: channels_first(channels_last(a) @ channels_last(b)),
    MaxPooling2D: _max_pooling,
    PadChannels: lambda net, layer, x: channels_first(F.pad(channels_last(x), (layer.op.before, layer.op.after))),
    RMSNormalization: _example_normalization,
    ReLU: _relu,
    Resize: _resize,
    ReverseEmbedding: lambda net, layer, x: channels_first(channels_last(x) @ net.role(layer, "embeddings")),
    RotaryEmbedding: _rotary,
    SiLU: lambda net, layer, x: F.silu(x),
    SliceChannels: lambda net, layer, x: x.narrow(_axis(x), layer.op.start, layer.op.size),
    Softmax: lambda net, layer, x: F.softmax(x, _axis(x)),
    SpatialDropout2D: lambda net, layer, x: F.dropout2d(x, layer.op.rate, net.training),
    Stream: lambda net, layer, x: _rounded(x, layer.op.step),
    SubSpectralNormalization: _batchnorm,
    Take: _take,
    UpSampling2D: _resize,
    ZeroPadding2D: _zero_padding,
}


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
