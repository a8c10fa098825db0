"""tinygrad's version of a network: a function of the same weights. It knows the ops of convolutional networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
from tinygrad import Tensor

from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Flatten,
    GlobalAveragePooling2D,
    LogSoftmax,
    MaxPooling2D,
    Op,
    ReLU,
    SiLU,
    Softmax,
    ZeroPadding2D,
)
from edgelearn.ops.elementwise import Activation

from .exporting import ExportedLayer
from .weights import formula_of, without_softmax


class TinygradNetwork:
    """A network computed by tinygrad, for inputs (n, channels, height, width) or (n, features).

    Arguments:
    - `weights`: arrays by name (default: `initialize(0)`).
    - `batchnorm`: `"moving"` or `"batch"`, which also assigns new moving statistics: realize `statistics`.
    - `logits`: leave a Softmax or LogSoftmax at the end out.

    Raises FormatError for an op that has no counterpart, and for several inputs or outputs.
    """

    def __init__(
        self,
        network: Network,
        weights: Mapping[str, np.ndarray] | None = None,
        batchnorm: Literal["moving", "batch"] = "moving",
        logits: bool = False,
    ) -> None:
        self.network, self.batchnorm = network, batchnorm
        if len(network.inputs) > 1 or len(network.outputs) > 1:
            raise FormatError(f"tinygrad's version has one input and one output, but '{network.name}' has more.")
        self.nodes, ends = without_softmax(network) if logits else (list(network.nodes.values()), network.outputs)
        self._end = next(iter(ends))
        (self._input,) = network.inputs
        self._layers = {node.name: ExportedLayer.of(network, node) for node in self.nodes}
        for node in self.nodes:  # others than activations have weights, or operands of several shapes
            if type(node.op) not in HANDLERS and not (isinstance(node.op, Activation) and formula_of(node.op)):
                raise FormatError(f"tinygrad's version of a network has no {type(node.op).__name__}.")
        weights = network.initialize(0) if weights is None else weights
        arrays = {name: array.transpose(_order(network, name)) for name, array in weights.items()}
        self.tensors = {name: Tensor(np.ascontiguousarray(array)).realize() for name, array in arrays.items()}

    @property
    def trained(self) -> dict[str, Tensor]:
        """The trainable weights by name."""
        return {name: tensor for name, tensor in self.tensors.items() if name in self.network.trainable}

    @property
    def statistics(self) -> list[Tensor]:
        """Moving means and variances."""
        return [self.tensors[name] for name, p in self.network.parameters.items() if not p.weight.trainable]

    def decode_weight(self, name: str, tensor: Tensor) -> np.ndarray:
        """A weight, or its gradient, in the network's layout."""
        return tensor.numpy().transpose(np.argsort(_order(self.network, name)))

    def __call__(self, x: Tensor) -> Tensor:
        values = {self._input: x}
        for node in self.nodes:
            inputs = (values[name] for name in node.inputs)
            values[node.name] = HANDLERS.get(type(node.op), _formula)(self, self._layers[node.name], *inputs)
        return values[self._end]

    def role(self, layer: ExportedLayer, role: str) -> Any:
        """A weight of a layer, None where the layer has none of this role."""
        return self.tensors.get(f"{layer.owner}/{role}")


def encode(x: np.ndarray) -> Tensor:
    """Arrays (n, height, width, channels) as networks take them; others as they are."""
    return Tensor(np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.ndim == 4 else x)).realize()


def decode(tensor: Tensor) -> np.ndarray:
    """Outputs, or gradients of inputs, as (n, height, width, channels); others as they are."""
    array = tensor.numpy()
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def _order(network: Network, name: str) -> tuple[int, ...]:
    """The axes of the network's array in tinygrad's order."""
    parameter = network.parameters[name]
    if len(parameter.weight.shape) != 4:
        return tuple(range(len(parameter.weight.shape)))
    return (2, 3, 0, 1) if isinstance(network.nodes[parameter.layer].op, DepthwiseConv2D) else (3, 2, 0, 1)


def _convolution(net: TinygradNetwork, layer: ExportedLayer, x: Tensor) -> Tensor:
    op, window = layer.op, layer.window
    groups = x.shape[1] if isinstance(op, DepthwiseConv2D) else op.groups
    kernel, bias = net.role(layer, "kernel"), net.role(layer, "bias")
    if isinstance(op, DepthwiseConv2D):
        kernel = kernel.reshape(-1, 1, *window.kernel)
    vertical, horizontal = window.padding
    return x.conv2d(kernel, bias, groups, window.strides, window.dilation, (*horizontal, *vertical))


def _batchnorm(net: TinygradNetwork, layer: ExportedLayer, x: Tensor) -> Tensor:
    gamma, beta, mean, variance = (
        net.tensors[f"{layer.owner}/{role}"] for role in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    if net.batchnorm == "batch" and f"{layer.owner}/gamma" in net.network.trainable:
        axes, shape = tuple(a for a in range(x.ndim) if a != 1), (1, -1, *(1,) * (x.ndim - 2))
        moving, momentum = (mean, variance), layer.op.momentum
        mean = x.mean(axes)
        variance = (x - mean.reshape(*shape)).square().mean(axes)
        for old, new in zip(moving, (mean, variance), strict=True):
            old.assign(momentum * old + (1 - momentum) * new.detach())
    return x.batchnorm(gamma, beta, mean, (variance + layer.op.epsilon).rsqrt())


def _dense(net: TinygradNetwork, layer: ExportedLayer, x: Tensor) -> Tensor:
    kernel, bias = net.role(layer, "kernel"), net.role(layer, "bias")
    return x @ kernel if bias is None else x @ kernel + bias


def _pooling(net: TinygradNetwork, layer: ExportedLayer, x: Tensor) -> Tensor:
    """Padding never counts."""
    window = layer.window
    (top, bottom), (left, right) = window.padding
    settings: dict[str, Any] = {"stride": window.strides, "padding": (left, right, top, bottom)}
    if isinstance(layer.op, MaxPooling2D):
        return x.max_pool2d(window.kernel, **settings)  # type: ignore[return-value]  without indices
    return x.avg_pool2d(window.kernel, **settings, count_include_pad=False)


class _Functions:
    """The functions of formulas (see edgelearn.ops.formula)."""

    where = staticmethod(lambda condition, a, b: condition.where(a, b))
    expm1 = staticmethod(lambda x: x.exp() - 1)
    log1p = staticmethod(lambda x: (x + 1).log())

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        return getattr(Tensor, name)


def _formula(net: TinygradNetwork, layer: ExportedLayer, *x: Tensor) -> Tensor:
    return layer.op.formula(_Functions(), *x)


def _zero_padding(net: TinygradNetwork, layer: ExportedLayer, x: Tensor) -> Tensor:
    vertical, horizontal = layer.op.sides
    return x.pad((*horizontal, *vertical))


HANDLERS: dict[type[Op], Callable[..., Tensor]] = {
    Add: lambda net, layer, *x: reduce(add, x),
    AveragePooling2D: _pooling,
    BatchNormalization: _batchnorm,
    Concatenate: lambda net, layer, x, *others: x.cat(*others, dim=1),
    Conv2D: _convolution,
    Dense: _dense,
    DepthwiseConv2D: _convolution,
    Flatten: lambda net, layer, x: (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).flatten(1),
    GlobalAveragePooling2D: lambda net, layer, x: x.mean((2, 3)),
    MaxPooling2D: _pooling,
    ReLU: lambda net, layer, x: x.relu() if layer.op.max_value is None else x.relu().minimum(layer.op.max_value),
    SiLU: lambda net, layer, x: x.silu(),
    LogSoftmax: lambda net, layer, x: x.log_softmax(),
    Softmax: lambda net, layer, x: x.softmax(),
    ZeroPadding2D: _zero_padding,
}
