"""Parts of networks: units of a convolution, BatchNormalization and an activation; squeeze-and-excite; classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgelearn.graph import Network
from edgelearn.ops import (
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    GlobalAveragePooling2D,
    Multiply,
    Op,
    Reshape,
    Softmax,
)

HE: dict[str, Any] = {"use_bias": False, "kernel_initializer": "he_normal"}  # He et al. 2015


def conv(filters: int, size: Any = 1, strides: Any = 1, padding: Any = "same") -> Conv2D:
    """A convolution without a bias."""
    return Conv2D(filters, size, strides, padding, **HE)


def depthwise(size: Any = 3, strides: Any = 1, padding: Any = "same", dilation: Any = 1) -> DepthwiseConv2D:
    """A depthwise convolution without a bias."""
    return DepthwiseConv2D(size, strides, padding, dilation, **HE)


def unit(
    network: Network, name: str, op: Op, activation: Op | None, norm: BatchNormalization, *inputs: str,
    norm_name: str = "{}_bn", activation_name: str = "{}_relu",
) -> str:  # fmt: skip
    """Add an op, BatchNormalization and an activation (None: without one). Returns the output's name.

    Arguments:
    - `norm_name`, `activation_name`: names of these layers; "{}" stands for `name`.
    """
    network.add(name, op, *inputs)
    y = network.add(norm_name.format(name), norm)
    return network.add(activation_name.format(name), activation) if activation else y


def classify(
    network: Network, classes: int | None, softmax: bool, name: str = "predictions",
    pool: str = "global_average_pooling2d", dropout: tuple[str, float] = ("", 0.0),
) -> Network:  # fmt: skip
    """Add global pooling, dropout unless its rate is 0, a dense layer unless `classes` is None, and a softmax."""
    network.add(pool, GlobalAveragePooling2D())
    if dropout[1]:
        network.add(dropout[0], Dropout(dropout[1]))
    if classes is not None:
        network.add(name, Dense(classes))
    if classes is not None and softmax:
        network.add("softmax", Softmax())
    return network


def squeeze_excite(network: Network, names: Sequence[str], filters: int, activation: Op, gate: Op) -> str:
    """Multiply each channel of the network's output by a gate that all channels' means decide (Hu et al. 2018, arXiv
    1709.01507). Returns the product's name.

    Arguments:
    - `names`: names of the two convolutions.
    - `filters`: channels between them.
    - `activation`, `gate`: ops after the first and the second one.
    """
    x, (first, second) = network.output, names
    pixel(network, f"{first}_pool")
    network.add(first, Conv2D(filters, 1, kernel_initializer="he_normal"))
    network.add(f"{first}_activation", activation)
    network.add(second, Conv2D(x.shape[-1], 1, kernel_initializer="he_normal"))
    network.add(f"{second}_gate", gate)
    return network.add(f"{second}_multiply", Multiply(), x.name, f"{second}_gate")


def pixel(network: Network, name: str) -> str:
    """Add the mean over all pixels, as an image of one."""
    channels = network.output.shape[-1]
    network.add(name, GlobalAveragePooling2D())
    return network.add(f"{name}_pixel", Reshape((1, 1, channels)))


def divisible(channels: float, by: int = 8) -> int:
    """Round to the nearest multiple of `by`, but not below 90 % of `channels`."""
    nearest = max(by, int(channels + by / 2) // by * by)
    return nearest if nearest >= 0.9 * channels else nearest + by
