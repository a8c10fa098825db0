"""MobileNet V3 (Howard et al. 2019, arXiv 1905.02244), with the layer names of keras.applications."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Conv2D,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    HardSigmoid,
    HardSwish,
    Op,
    ReLU,
    Softmax,
)

from .mobilenet_v2 import divisible
from .squeeze import add_pixel, add_squeeze_excite


@dataclass(frozen=True)
class Block:
    """A row of the paper's tables 1 and 2: kernel size, expansion, output channels, squeeze-and-excitation, activation,
    stride."""

    size: int
    expansion: float
    channels: int
    squeezes: bool
    activation: Op
    stride: int


RE, HS = ReLU(), HardSwish()
LARGE = (
    Block(3, 1, 16, False, RE, 1), Block(3, 4, 24, False, RE, 2), Block(3, 3, 24, False, RE, 1),
    Block(5, 3, 40, True, RE, 2), Block(5, 3, 40, True, RE, 1), Block(5, 3, 40, True, RE, 1),
    Block(3, 6, 80, False, HS, 2), Block(3, 2.5, 80, False, HS, 1), Block(3, 2.3, 80, False, HS, 1),
    Block(3, 2.3, 80, False, HS, 1), Block(3, 6, 112, True, HS, 1), Block(3, 6, 112, True, HS, 1),
    Block(5, 6, 160, True, HS, 2), Block(5, 6, 160, True, HS, 1), Block(5, 6, 160, True, HS, 1),
)  # fmt: skip
SMALL = (
    Block(3, 1, 16, True, RE, 2), Block(3, 72 / 16, 24, False, RE, 2), Block(3, 88 / 24, 24, False, RE, 1),
    Block(5, 4, 40, True, HS, 2), Block(5, 6, 40, True, HS, 1), Block(5, 6, 40, True, HS, 1),
    Block(5, 3, 48, True, HS, 1), Block(5, 3, 48, True, HS, 1), Block(5, 6, 96, True, HS, 2),
    Block(5, 6, 96, True, HS, 1), Block(5, 6, 96, True, HS, 1),
)  # fmt: skip
SQUEEZE = 0.25  # channels of a squeeze, of those that it weighs


def mobilenet_v3_large(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """MobileNet V3 Large, table 1 of the paper. Input: RGB scaled to [-1, 1]. Kernels are initialised as in He et al.
    2015.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: channels of the last convolution, "logits" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `dropout`: rate before the last convolution (default 0.2).
    """
    return _build("large", LARGE, 1280, input_shape, alpha, classes, softmax, dropout)


def mobilenet_v3_small(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """MobileNet V3 Small, table 2 of the paper; arguments as `mobilenet_v3_large`."""
    return _build("small", SMALL, 1024, input_shape, alpha, classes, softmax, dropout)


def _build(
    kind: str, blocks: tuple[Block, ...], head: int, input_shape: tuple[int, int, int], alpha: float, classes: int,
    softmax: bool, dropout: float,
) -> Network:  # fmt: skip
    network = Network(f"mobilenet_v3_{kind}_{alpha:g}_{input_shape[0]}", input_shape)
    _unit(network, "conv", _conv(16, 3, 2), HS)
    for number, block in enumerate(blocks):
        _bottleneck(network, f"expanded_conv_{number}" if number else "expanded_conv", block, alpha, expands=number > 0)
    _unit(network, "conv_1", _conv(divisible(network.output.shape[-1] * 6)), HS)
    add_pixel(network, "pool")
    network.add("conv_2", Conv2D(divisible(head * alpha) if alpha > 1 else head, 1, kernel_initializer="he_normal"))
    network.add("conv_2_hard_swish", HS)
    if dropout:
        network.add("dropout", Dropout(dropout))
    network.add("logits", Conv2D(classes, 1))
    network.add("flatten", Flatten())
    if softmax:
        network.add("softmax", Softmax())
    return network


def _bottleneck(network: Network, name: str, block: Block, alpha: float, expands: bool) -> None:
    """Figure 4 of the paper: expand, filter, squeeze and excite, project, with a shortcut where the shape stays."""
    x, filters = network.output, divisible(block.channels * alpha)
    inside = divisible(x.shape[-1] * block.expansion)
    if expands:
        _unit(network, f"{name}_expand", _conv(inside), block.activation)
    depthwise = DepthwiseConv2D(block.size, block.stride, "same", use_bias=False, kernel_initializer="he_normal")
    _unit(network, f"{name}_depthwise", depthwise, block.activation)
    if block.squeezes:
        names = [f"{name}_squeeze_excite_{part}" for part in ("conv", "conv_1")]
        add_squeeze_excite(network, names, divisible(inside * SQUEEZE), ReLU(), HardSigmoid())
    network.add(f"{name}_project", _conv(filters))
    y = network.add(f"{name}_project_bn", _norm())
    if network.shape_of(y) == x.shape:
        network.add(f"{name}_add", Add(), x.name, y)


def _unit(network: Network, name: str, op: Op, activation: Op) -> None:
    network.add(name, op)
    network.add(f"{name}_bn", _norm())
    network.add(f"{name}_{'relu' if activation == RE else 'hard_swish'}", activation)


def _norm() -> BatchNormalization:
    return BatchNormalization(0.999, 1e-3)


def _conv(filters: int, size: int = 1, strides: int = 1) -> Conv2D:
    return Conv2D(filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal")
