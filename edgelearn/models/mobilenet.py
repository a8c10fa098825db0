"""Mobile networks, with the layer names of keras.applications: MobileNet V1 (Howard et al. 2017, arXiv 1704.04861), V2
(Sandler et al. 2018, arXiv 1801.04381), with couplings instead of residual blocks, so that their inputs need not be
stored, and V3 (Howard et al. 2019, arXiv 1905.02244)."""

from __future__ import annotations

from edgelearn.graph import Network, reversible
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Coupling,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    HardSigmoid,
    HardSwish,
    Op,
    ReLU,
    SliceChannels,
    Softmax,
    Stream,
)
from edgelearn.ops.merge import STEP

from .parts import classify, conv, depthwise, divisible, pixel, squeeze_excite, unit

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

    def add(name: str, op: Op) -> None:
        unit(network, name, op, ReLU(6), BatchNormalization())

    add("conv1", Conv2D(int(32 * alpha), 3, strides=2, padding=HALVE, use_bias=False))
    for block, filters in enumerate(V1_FILTERS, start=1):
        settings = {"strides": 2, "padding": HALVE} if block in V1_REDUCES else {"strides": 1, "padding": "same"}
        add(f"conv_dw_{block}", DepthwiseConv2D(3, use_bias=False, **settings))  # type: ignore[arg-type]
        add(f"conv_pw_{block}", Conv2D(int(filters * alpha), 1, use_bias=False))
    return classify(network, classes, softmax, "dense")


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


def mobilenet_v2_reversible(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    step: float = STEP,
) -> Network:
    """`mobilenet_v2` with two streams of full width (see graph/reversible.py): layers, parameters and multiply-adds are
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
    builder = _V2SplitBuilder(f"mobilenet_v2_split_cifar_{alpha:g}_{input_shape[0]}", input_shape, alpha, momentum=0.9)
    builder.step = step
    return builder.build(1, V2_CIFAR_STAGES, classes, softmax)


class _V2Builder:
    """Builds MobileNet V2 from a table of stages."""

    def __init__(self, name: str, input_shape: tuple[int, int, int], alpha: float, momentum: float) -> None:
        self.network, self.alpha = Network(name, input_shape), alpha
        self.norm = BatchNormalization(momentum, 1e-3)

    def unit(self, name: str, op: Op, *inputs: str, norm: str = "{}_BN", relu: str = "{}_relu") -> str:
        return unit(self.network, name, op, ReLU(6), self.norm, *inputs, norm_name=norm, activation_name=relu)

    def build(self, strides: int, stages: tuple[tuple[int, ...], ...], classes: int, softmax: bool) -> Network:
        alpha = self.alpha
        self.unit("Conv1", conv(divisible(STEM * alpha), 3, strides), norm="bn_Conv1")
        blocks = [(t, c, s if first else 1) for t, c, n, s in stages for first in [True] + [False] * (n - 1)]
        for number, (expansion, channels, stride) in enumerate(blocks):
            name = f"block_{number}" if number else "expanded_conv"
            self.bottleneck(name, expansion, divisible(int(channels * alpha)), stride)
        self.unit("Conv_1", conv(divisible(HEAD * max(alpha, 1.0))), norm="Conv_1_bn", relu="out_relu")
        return classify(self.network, classes, softmax)

    def bottleneck(self, name: str, expansion: int, channels: int, stride: int) -> None:
        """A block, with a shortcut where the shape stays (figure 4 of the paper)."""
        x = self.network.output
        y = self.transform(name, x.name, expansion, channels, stride)
        if self.network.shape_of(y) == x.shape:
            self.network.add(f"{name}_add", Add(), x.name, y)

    def transform(self, name: str, x: str, expansion: int, channels: int, stride: int) -> str:
        """Table 1 of the paper: expand, filter, project."""
        if expansion > 1:
            x = self.unit(f"{name}_expand", conv(expansion * self.network.shape_of(x)[-1]), x)
        self.unit(f"{name}_depthwise", depthwise(3, stride), x)
        return unit(self.network, f"{name}_project", conv(channels), None, self.norm, norm_name="{}_BN")


class _V2SplitBuilder(_V2Builder):
    """Builds it with two streams of half the channels; `step`: their rounding."""

    streams: tuple[str, ...] = ()
    step = STEP

    def bottleneck(self, name: str, expansion: int, channels: int, stride: int) -> None:
        """Add a block; one that changes shape reads the concatenated streams."""
        network = self.network
        width = network.output.shape[-1] * (2 if self.streams else 1)
        if stride > 1 or channels != width:
            if self.streams:
                network.add(f"{name}_input", Concatenate(), *self.streams)
            self.streams = ()
            self.transform(name, network.output.name, expansion, channels, stride)
            return
        half = channels // 2
        if not self.streams:
            x = network.output.name
            x = network.add(f"{x}_stream", Stream(self.step)) if self.step else x
            first = network.add(f"{name}_first", SliceChannels(0, half), x)
            self.streams = first, network.add(f"{name}_second", SliceChannels(half, half), x)
        for function in ("f", "g"):
            x, other = self.streams
            y = self.transform(f"{name}_{function}", other, expansion, half, 1)
            self.streams = other, network.add(f"{name}_{function}_add", Coupling(self.step), x, y)


# Tables 1 and 2 of the paper: kernel size, expansion, channels, squeeze-and-excitation, activation, stride.
RE, HS = ReLU(), HardSwish()
V3_LARGE = (
    (3, 1, 16, False, RE, 1), (3, 4, 24, False, RE, 2), (3, 3, 24, False, RE, 1), (5, 3, 40, True, RE, 2),
    (5, 3, 40, True, RE, 1), (5, 3, 40, True, RE, 1), (3, 6, 80, False, HS, 2), (3, 2.5, 80, False, HS, 1),
    (3, 2.3, 80, False, HS, 1), (3, 2.3, 80, False, HS, 1), (3, 6, 112, True, HS, 1), (3, 6, 112, True, HS, 1),
    (5, 6, 160, True, HS, 2), (5, 6, 160, True, HS, 1), (5, 6, 160, True, HS, 1),
)  # fmt: skip
V3_SMALL = (
    (3, 1, 16, True, RE, 2), (3, 72 / 16, 24, False, RE, 2), (3, 88 / 24, 24, False, RE, 1), (5, 4, 40, True, HS, 2),
    (5, 6, 40, True, HS, 1), (5, 6, 40, True, HS, 1), (5, 3, 48, True, HS, 1), (5, 3, 48, True, HS, 1),
    (5, 6, 96, True, HS, 2), (5, 6, 96, True, HS, 1), (5, 6, 96, True, HS, 1),
)  # fmt: skip
V3_NORM = BatchNormalization(0.999, 1e-3)
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
    network = Network(f"mobilenet_v3_large_{alpha:g}_{input_shape[0]}", input_shape)
    return _build_v3(network, V3_LARGE, 1280, alpha, classes, softmax, dropout)


def mobilenet_v3_small(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """MobileNet V3 Small, table 2 of the paper; arguments as `mobilenet_v3_large`."""
    network = Network(f"mobilenet_v3_small_{alpha:g}_{input_shape[0]}", input_shape)
    return _build_v3(network, V3_SMALL, 1024, alpha, classes, softmax, dropout)


def _build_v3(
    network: Network, blocks: tuple, head: int, alpha: float, classes: int, softmax: bool, dropout: float
) -> Network:
    _v3_unit(network, "conv", conv(16, 3, 2), HS)
    for number, block in enumerate(blocks):
        _v3_bottleneck(network, f"expanded_conv_{number}" if number else "expanded_conv", alpha, number > 0, *block)
    _v3_unit(network, "conv_1", conv(divisible(network.output.shape[-1] * 6)), HS)
    pixel(network, "pool")
    network.add("conv_2", Conv2D(divisible(head * alpha) if alpha > 1 else head, 1, kernel_initializer="he_normal"))
    network.add("conv_2_hard_swish", HS)
    if dropout:
        network.add("dropout", Dropout(dropout))
    network.add("logits", Conv2D(classes, 1))
    network.add("flatten", Flatten())
    if softmax:
        network.add("softmax", Softmax())
    return network


def _v3_bottleneck(
    network: Network, name: str, alpha: float, expands: bool, size: int, expansion: float, channels: int,
    squeezes: bool, activation: Op, stride: int,
) -> None:  # fmt: skip
    """Figure 4 of the paper: expand, filter, squeeze and excite, project, with a shortcut where the shape stays."""
    x = network.output
    inside = divisible(x.shape[-1] * expansion)
    if expands:
        _v3_unit(network, f"{name}_expand", conv(inside), activation)
    _v3_unit(network, f"{name}_depthwise", depthwise(size, stride), activation)
    if squeezes:
        names = [f"{name}_squeeze_excite_{part}" for part in ("conv", "conv_1")]
        squeeze_excite(network, names, divisible(inside * SQUEEZE), RE, HardSigmoid())
    y = _v3_unit(network, f"{name}_project", conv(divisible(channels * alpha)))
    if network.shape_of(y) == x.shape:
        network.add(f"{name}_add", Add(), x.name, y)


def _v3_unit(network: Network, name: str, op: Op, activation: Op | None = None) -> str:
    kind = "relu" if activation == RE else "hard_swish"
    return unit(network, name, op, activation, V3_NORM, activation_name=f"{{}}_{kind}")
