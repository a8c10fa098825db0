"""AlexNet as published for two GPUs (Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural
networks") and in one column (Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", arXiv
1404.5997). Layers are called as in the paper's code: conv1 to conv5, then fc6 to fc8.
"""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import (
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    LinearOp,
    LocalResponseNormalization,
    MaxPooling2D,
    ReLU,
    Softmax,
)

# Filters, kernel size, strides, sides of padding, groups; layers 1, 2 and 5 are pooled.
TWO_COLUMNS = ((96, 11, 4, 0, 1), (256, 5, 1, 2, 2), (384, 3, 1, 1, 1), (384, 3, 1, 1, 2), (256, 3, 1, 1, 2))
ONE_COLUMN = ((64, 11, 4, 2, 1), (192, 5, 1, 2, 1), (384, 3, 1, 1, 1), (256, 3, 1, 1, 1), (256, 3, 1, 1, 1))
POOLED, RESPONSE_NORMALIZED = (1, 2, 5), (1, 2)


def alexnet(
    input_shape: tuple[int, int, int] = (227, 227, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    units: int = 4096,
    dropout: float = 0.5,
) -> Network:
    """AlexNet of 2012: convolutions 2, 4 and 5 in two groups, one for each GPU, and local response normalization after
    the first two. The paper's 224 pixels are 227, without which its layers don't fit. Kernels are initialised as in He
    et al. 2015. Input: RGB minus each channel's mean.

    Arguments:
    - `input_shape`: height and width of at least 67.
    - `alpha`: width multiplier of the convolutions; their filters are rounded to multiples of 2 (default 1).
    - `classes`: units of the last layer, "fc8" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `units`: of each of the two hidden dense layers (default 4096).
    - `dropout`: rate before each hidden dense layer (default 0.5); 0: no Dropout layers.
    """
    network = Network(f"alexnet_{alpha:g}_{input_shape[0]}", input_shape)
    return _build(network, TWO_COLUMNS, RESPONSE_NORMALIZED, alpha, classes, softmax, units, dropout)


def alexnet_one_column(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    units: int = 4096,
    dropout: float = 0.5,
) -> Network:
    """AlexNet of 2014, which torchvision has: one column, fewer filters, no local response normalization. Input: RGB,
    each channel with mean 0 and deviation 1. Arguments as `alexnet`; height and width of at least 63."""
    network = Network(f"alexnet_one_column_{alpha:g}_{input_shape[0]}", input_shape)
    return _build(network, ONE_COLUMN, (), alpha, classes, softmax, units, dropout)


def _build(
    network: Network, columns: tuple[tuple[int, ...], ...], normalized: tuple[int, ...], alpha: float, classes: int,
    softmax: bool, units: int, dropout: float,
) -> Network:  # fmt: skip
    def rectified(name: str, op: LinearOp) -> None:
        network.add(name, op)
        network.add(f"{name.replace('conv', 'relu').replace('fc', 'relu')}", ReLU())

    for number, (filters, size, strides, side, groups) in enumerate(columns, start=1):
        sides = ((side, side), (side, side))
        filters = 2 * round(filters * alpha / 2)
        rectified(
            f"conv{number}",
            Conv2D(filters, size, strides, sides, groups=groups, kernel_initializer="he_normal"),
        )
        if number in normalized:
            network.add(f"norm{number}", LocalResponseNormalization(size=5, alpha=1e-4, beta=0.75, bias=2.0))
        if number in POOLED:
            network.add(f"pool{number}", MaxPooling2D(3, 2))
    network.add("flatten", Flatten())
    for name in ("fc6", "fc7"):
        if dropout:
            network.add(f"drop_{name}", Dropout(dropout))
        rectified(name, Dense(units, kernel_initializer="he_normal"))
    network.add("fc8", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network
