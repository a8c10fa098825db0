"""MobileNet V2 (Sandler et al. 2018, arXiv 1801.04381), with the layer names of keras.applications."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    Op,
    ReLU,
    Softmax,
)

# Table 2 of the paper: expansion, channels, blocks, stride of the first block.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
CIFAR_STAGES = tuple((t, c, n, 1 if c == 24 else s) for t, c, n, s in STAGES)
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
    return Builder(name, input_shape, alpha, momentum=0.999).build(2, STAGES, classes, softmax)


def mobilenet_v2_cifar(
    input_shape: tuple[int, int, int] = (32, 32, 3), alpha: float = 1.0, classes: int = 10, softmax: bool = True
) -> Network:
    """`mobilenet_v2` for 32 x 32 pictures: the first convolution and the first stage of stride 2 have stride 1, so that
    the last stages see 4 x 4 pixels. Moving statistics have a lower momentum, 0.9, since a small data set has few
    steps. Input: RGB, each channel with mean 0 and deviation 1."""
    name = f"mobilenet_v2_cifar_{alpha:g}_{input_shape[0]}"
    return Builder(name, input_shape, alpha, momentum=0.9).build(1, CIFAR_STAGES, classes, softmax)


class Builder:
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
