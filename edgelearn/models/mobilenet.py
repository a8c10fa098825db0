"""Mobile networks, with the layer names of keras.applications: MobileNet V1 (Howard et al. 2017, arXiv 1704.04861), V2
(Sandler et al. 2018, arXiv 1801.04381), with couplings instead of residual blocks, so that their inputs need not be
stored, V3 (Howard et al. 2019, arXiv 1905.02244) and EfficientNet-B0 (Tan and Le 2019, arXiv 1905.11946).
Squeeze-and-excitation: Hu et al. 2018, arXiv 1709.01507.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgelearn.graph import Network, reversible
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Coupling,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    HardSigmoid,
    HardSwish,
    Multiply,
    Op,
    ReLU,
    Reshape,
    Sigmoid,
    SiLU,
    SliceChannels,
    Softmax,
    Stream,
)
from edgelearn.ops.merge import STEP


def add_squeeze_excite(network: Network, names: Sequence[str], filters: int, activation: Op, gate: Op) -> str:
    """Multiply each channel of the network's output by a gate that all channels' means decide. Returns the product's
    name.

    Arguments:
    - `names`: of the two convolutions.
    - `filters`: channels between them.
    - `activation`: behind the first one.
    - `gate`: behind the second one.
    """
    x, (first, second) = network.output, names
    add_pixel(network, f"{first}_pool")
    network.add(first, Conv2D(filters, 1, kernel_initializer="he_normal"))
    network.add(f"{first}_activation", activation)
    network.add(second, Conv2D(x.shape[-1], 1, kernel_initializer="he_normal"))
    network.add(f"{second}_gate", gate)
    return network.add(f"{second}_multiply", Multiply(), x.name, f"{second}_gate")


def add_pixel(network: Network, name: str) -> str:
    """Add the mean over all pixels, as an image of one."""
    channels = network.output.shape[-1]
    network.add(name, GlobalAveragePooling2D())
    return network.add(f"{name}_pixel", Reshape((1, 1, channels)))


V1_FILTERS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
V1_REDUCES = (2, 4, 6, 12)  # blocks whose depthwise convolution has stride 2
HALVE = ((0, 1), (0, 1))  # keras.applications pads at the bottom and right before a stride-2 "valid" convolution


def mobilenet_v1(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """MobileNet V1, table 1 of the paper, with ReLU6. Input: RGB scaled to [-1, 1].

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "dense" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"mobilenet_v1_{alpha:g}_{input_shape[0]}", input_shape)

    def unit(name: str, op) -> None:
        network.add(name, op)
        network.add(f"{name}_bn", BatchNormalization())
        network.add(f"{name}_relu", ReLU(6))

    unit("conv1", Conv2D(int(32 * alpha), 3, strides=2, padding=HALVE, use_bias=False))
    for block, filters in enumerate(V1_FILTERS, start=1):
        stride = 2 if block in V1_REDUCES else 1
        padding = HALVE if stride == 2 else "same"
        unit(f"conv_dw_{block}", DepthwiseConv2D(3, strides=stride, padding=padding, use_bias=False))
        unit(f"conv_pw_{block}", Conv2D(int(filters * alpha), 1, use_bias=False))
    network.add("global_average_pooling2d", GlobalAveragePooling2D())
    network.add("dense", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


# Table 2 of the paper: expansion, channels, blocks, stride of the first block.
V2_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
V2_CIFAR_STAGES = tuple((t, c, n, 1 if c == 24 else s) for t, c, n, s in V2_STAGES)
STEM, HEAD = 32, 1280  # channels of the first and the last convolution


def mobilenet_v2(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """MobileNet V2, table 2 of the paper. Input: RGB scaled to [-1, 1]. Kernels are initialised as in He et al. 2015.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    name = f"mobilenet_v2_{alpha:g}_{input_shape[0]}"
    return _V2Builder(name, input_shape, alpha, momentum=0.999).build(2, V2_STAGES, classes, softmax)


def mobilenet_v2_cifar(
    input_shape: tuple[int, int, int] = (32, 32, 3), alpha: float = 1.0, classes: int = 10, softmax: bool = True
) -> Network:
    """`mobilenet_v2` for 32 x 32 pictures: the first convolution and the first stage of stride 2 have stride 1, so that
    the last stages see 4 x 4 pixels. Moving statistics have a lower momentum, 0.9, since a small data set has few
    steps. Input: RGB, each channel with mean 0 and deviation 1."""
    name = f"mobilenet_v2_cifar_{alpha:g}_{input_shape[0]}"
    return _V2Builder(name, input_shape, alpha, momentum=0.9).build(1, V2_CIFAR_STAGES, classes, softmax)


class _V2Builder:
    """Builds MobileNet V2 from a table of stages."""

    def __init__(self, name: str, input_shape: tuple[int, int, int], alpha: float, momentum: float) -> None:
        self.network, self.alpha, self.momentum = Network(name, input_shape), alpha, momentum

    def build(self, strides: int, stages: tuple[tuple[int, ...], ...], classes: int, softmax: bool) -> Network:
        network, alpha = self.network, self.alpha
        self.unit("Conv1", _conv(divisible(STEM * alpha), 3, strides), norm="bn_Conv1", relu="Conv1_relu")
        blocks = [(t, c, s if first else 1) for t, c, n, s in stages for first in [True] + [False] * (n - 1)]
        for number, (expansion, channels, stride) in enumerate(blocks):
            name = f"block_{number}" if number else "expanded_conv"
            self.bottleneck(name, expansion, divisible(int(channels * alpha)), stride)
        self.unit("Conv_1", _conv(divisible(HEAD * max(alpha, 1.0))), norm="Conv_1_bn", relu="out_relu")
        network.add("global_average_pooling2d", GlobalAveragePooling2D())
        network.add("predictions", Dense(classes))
        if softmax:
            network.add("softmax", Softmax())
        return network

    def bottleneck(self, name: str, expansion: int, channels: int, stride: int) -> None:
        """A block, with a shortcut where the shape stays (figure 4 of the paper)."""
        x = self.network.output
        y = self.transform(name, x.name, expansion, channels, stride)
        if self.network.shape_of(y) == x.shape:
            self.network.add(f"{name}_add", Add(), x.name, y)

    def transform(self, name: str, x: str, expansion: int, channels: int, stride: int) -> str:
        """Table 1 of the paper: expand, filter, project."""
        if expansion > 1:
            x = self.unit(f"{name}_expand", _conv(expansion * self.network.shape_of(x)[-1]), x)
        depthwise = DepthwiseConv2D(3, stride, "same", use_bias=False, kernel_initializer="he_normal")
        self.unit(f"{name}_depthwise", depthwise, x)
        self.network.add(f"{name}_project", _conv(channels))
        return self.network.add(f"{name}_project_BN", self.norm())

    def unit(self, name: str, op: Op, *inputs: str, norm: str | None = None, relu: str | None = None) -> str:
        self.network.add(name, op, *inputs)
        self.network.add(norm or f"{name}_BN", self.norm())
        return self.network.add(relu or f"{name}_relu", ReLU(6))

    def norm(self) -> BatchNormalization:
        return BatchNormalization(self.momentum, 1e-3)


def _conv(filters: int, size: int = 1, strides: int = 1) -> Conv2D:
    return Conv2D(filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal")


def divisible(channels: float, by: int = 8) -> int:
    """Round to the nearest multiple of `by`, but not below 90 % of `channels`."""
    nearest = max(by, int(channels + by / 2) // by * by)
    return nearest if nearest >= 0.9 * channels else nearest + by


def mobilenet_v2_reversible(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    step: float = STEP,
) -> Network:
    """`mobilenet_v2` with two streams of full width (see graph/rewrites.py): layers, parameters and multiply-adds are
    the same, and the seven blocks that change shape are unchanged. With step 0 the streams are not rounded."""
    return reversible(mobilenet_v2(input_shape, alpha, classes, softmax), step=step)


def mobilenet_v2_split_cifar(
    input_shape: tuple[int, int, int] = (32, 32, 3),
    alpha: float = 1.0,
    classes: int = 10,
    softmax: bool = True,
    step: float = STEP,
) -> Network:
    """`mobilenet_v2_cifar` with streams of half the channels and two couplings instead of each residual block (Gomez et
    al. 2017, arXiv 1707.04585, equation 6): half the memory of two full streams, and fewer parameters."""
    name = f"mobilenet_v2_split_cifar_{alpha:g}_{input_shape[0]}"
    return _V2SplitBuilder(name, input_shape, alpha, 0.9, step).build(1, V2_CIFAR_STAGES, classes, softmax)


class _V2SplitBuilder(_V2Builder):
    def __init__(self, name: str, input_shape: tuple[int, int, int], alpha: float, momentum: float, step: float):
        super().__init__(name, input_shape, alpha, momentum)
        self.step = step
        self.streams: list[str] = []

    def bottleneck(self, name: str, expansion: int, channels: int, stride: int) -> None:
        """Add a block; one that changes shape reads the concatenated streams."""
        width = self.network.output.shape[-1] * (2 if self.streams else 1)
        if stride == 1 and channels == width:
            self.couple(name, expansion, channels // 2)
            return
        if self.streams:
            self.network.add(f"{name}_input", Concatenate(), *self.streams)
            self.streams = []
        self.transform(name, self.network.output.name, expansion, channels, stride)

    def couple(self, name: str, expansion: int, half: int) -> None:
        network = self.network
        if not self.streams:
            x = network.output.name
            x = network.add(f"{x}_stream", Stream(self.step)) if self.step else x
            self.streams = [
                network.add(f"{name}_{half_name}", SliceChannels(start, half), x)
                for half_name, start in (("first", 0), ("second", half))
            ]
        for function in ("f", "g"):
            x, other = self.streams
            y = self.transform(f"{name}_{function}", other, expansion, half, 1)
            self.streams = [other, network.add(f"{name}_{function}_add", Coupling(self.step), x, y)]


@dataclass(frozen=True)
class V3Block:
    """A row of the paper's tables 1 and 2: kernel size, expansion, output channels, squeeze-and-excitation, activation,
    stride."""

    size: int
    expansion: float
    channels: int
    squeezes: bool
    activation: Op
    stride: int


RE, HS = ReLU(), HardSwish()
V3_LARGE = (
    V3Block(3, 1, 16, False, RE, 1), V3Block(3, 4, 24, False, RE, 2), V3Block(3, 3, 24, False, RE, 1),
    V3Block(5, 3, 40, True, RE, 2), V3Block(5, 3, 40, True, RE, 1), V3Block(5, 3, 40, True, RE, 1),
    V3Block(3, 6, 80, False, HS, 2), V3Block(3, 2.5, 80, False, HS, 1), V3Block(3, 2.3, 80, False, HS, 1),
    V3Block(3, 2.3, 80, False, HS, 1), V3Block(3, 6, 112, True, HS, 1), V3Block(3, 6, 112, True, HS, 1),
    V3Block(5, 6, 160, True, HS, 2), V3Block(5, 6, 160, True, HS, 1), V3Block(5, 6, 160, True, HS, 1),
)  # fmt: skip
V3_SMALL = (
    V3Block(3, 1, 16, True, RE, 2), V3Block(3, 72 / 16, 24, False, RE, 2), V3Block(3, 88 / 24, 24, False, RE, 1),
    V3Block(5, 4, 40, True, HS, 2), V3Block(5, 6, 40, True, HS, 1), V3Block(5, 6, 40, True, HS, 1),
    V3Block(5, 3, 48, True, HS, 1), V3Block(5, 3, 48, True, HS, 1), V3Block(5, 6, 96, True, HS, 2),
    V3Block(5, 6, 96, True, HS, 1), V3Block(5, 6, 96, True, HS, 1),
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
    return _build_v3("large", V3_LARGE, 1280, input_shape, alpha, classes, softmax, dropout)


def mobilenet_v3_small(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """MobileNet V3 Small, table 2 of the paper; arguments as `mobilenet_v3_large`."""
    return _build_v3("small", V3_SMALL, 1024, input_shape, alpha, classes, softmax, dropout)


def _build_v3(
    kind: str, blocks: tuple[V3Block, ...], head: int, input_shape: tuple[int, int, int], alpha: float, classes: int,
    softmax: bool, dropout: float,
) -> Network:  # fmt: skip
    network = Network(f"mobilenet_v3_{kind}_{alpha:g}_{input_shape[0]}", input_shape)
    _v3_unit(network, "conv", _conv(16, 3, 2), HS)
    for number, block in enumerate(blocks):
        _v3_bottleneck(
            network, f"expanded_conv_{number}" if number else "expanded_conv", block, alpha, expands=number > 0
        )
    _v3_unit(network, "conv_1", _conv(divisible(network.output.shape[-1] * 6)), HS)
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


def _v3_bottleneck(network: Network, name: str, block: V3Block, alpha: float, expands: bool) -> None:
    """Figure 4 of the paper: expand, filter, squeeze and excite, project, with a shortcut where the shape stays."""
    x, filters = network.output, divisible(block.channels * alpha)
    inside = divisible(x.shape[-1] * block.expansion)
    if expands:
        _v3_unit(network, f"{name}_expand", _conv(inside), block.activation)
    depthwise = DepthwiseConv2D(block.size, block.stride, "same", use_bias=False, kernel_initializer="he_normal")
    _v3_unit(network, f"{name}_depthwise", depthwise, block.activation)
    if block.squeezes:
        names = [f"{name}_squeeze_excite_{part}" for part in ("conv", "conv_1")]
        add_squeeze_excite(network, names, divisible(inside * SQUEEZE), ReLU(), HardSigmoid())
    network.add(f"{name}_project", _conv(filters))
    y = network.add(f"{name}_project_bn", _v3_norm())
    if network.shape_of(y) == x.shape:
        network.add(f"{name}_add", Add(), x.name, y)


def _v3_unit(network: Network, name: str, op: Op, activation: Op) -> None:
    network.add(name, op)
    network.add(f"{name}_bn", _v3_norm())
    network.add(f"{name}_{'relu' if activation == RE else 'hard_swish'}", activation)


def _v3_norm() -> BatchNormalization:
    return BatchNormalization(0.999, 1e-3)


# Table 1 of the paper: kernel size, expansion, channels, blocks, stride of the first block.
B0_STAGES = (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)  # fmt: skip
# channels of the first and the last convolution
# channels of a squeeze, of the block's input


def efficientnet_b0(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """EfficientNet-B0, table 1 of the paper, without the random dropping of whole blocks. Kernels are initialised as in
    He et al. 2015.

    The input is what Keras's network has behind its layers "rescaling" and "normalization": RGB from 0 to 1, less the
    mean of ImageNet, over its deviation.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `dropout`: rate before the last layer (default 0.2).
    """
    network = Network(f"efficientnet_b0_{alpha:g}_{input_shape[0]}", input_shape)
    _b0_unit(network, "stem_{}", "conv", _conv(divisible(STEM * alpha), 3, 2))
    for stage, (size, expansion, channels, blocks, stride) in enumerate(B0_STAGES, start=1):
        for block in range(blocks):
            name = f"block{stage}{chr(ord('a') + block)}_{{}}"
            _b0_block(network, name, size, expansion, divisible(channels * alpha), stride if block == 0 else 1)
    _b0_unit(network, "top_{}", "conv", _conv(divisible(HEAD * alpha)))
    network.add("avg_pool", GlobalAveragePooling2D())
    if dropout:
        network.add("top_dropout", Dropout(dropout))
    network.add("predictions", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def _b0_block(network: Network, name: str, size: int, expansion: int, filters: int, stride: int) -> None:
    """Expand, filter, squeeze and excite, project, with a shortcut where the shape stays."""
    x = network.output
    channels = x.shape[-1]
    if expansion > 1:
        _b0_unit(network, name, "expand_conv", _conv(channels * expansion), "expand_{}")
    depthwise = DepthwiseConv2D(size, stride, "same", use_bias=False, kernel_initializer="he_normal")
    _b0_unit(network, name, "dwconv", depthwise)
    names = [name.format(part) for part in ("se_reduce", "se_expand")]
    add_squeeze_excite(network, names, max(1, int(channels * SQUEEZE)), SiLU(), Sigmoid())
    network.add(name.format("project_conv"), _conv(filters))
    y = network.add(name.format("project_bn"), BatchNormalization())
    if stride == 1 and network.shape_of(y) == x.shape:
        network.add(name.format("add"), Add(), x.name, y)


def _b0_unit(network: Network, name: str, layer: str, op: Op, part: str = "{}") -> None:
    """A convolution, BatchNorm and SiLU."""
    network.add(name.format(layer), op)
    network.add(name.format(part.format("bn")), BatchNormalization())
    network.add(name.format(part.format("activation")), SiLU())
