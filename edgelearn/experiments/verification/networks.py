"""ResNet-8 with GroupNormalization, for CIFAR-10 with one class a client."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import Add, Conv2D, Dense, GlobalAveragePooling2D, GroupNormalization, ReLU

_FILTERS = (16, 32, 64)


def picture_network(outputs: int) -> Network:
    """ResNet-8 for 32 x 32 pictures: a convolution and three residual blocks of 16, 32 and 64 filters, each convolution
    with GroupNormalization, then a dense layer "verification" without bias."""
    network = Network(f"resnet8_{outputs}", (32, 32, 3))
    _convolution(network, "conv", _FILTERS[0], 3)
    network.add("conv_relu", ReLU())
    for number, filters in enumerate(_FILTERS, start=1):
        name, strides = f"block{number}", 1 if number == 1 else 2
        x = network.output
        shortcut = x.name if strides == 1 else _convolution(network, f"{name}_0", filters, 1, strides, x.name)
        _convolution(network, f"{name}_1", filters, 3, strides, x.name)
        network.add(f"{name}_1_relu", ReLU())
        residual = _convolution(network, f"{name}_2", filters, 3)
        network.add(f"{name}_add", Add(), shortcut, residual)
        network.add(f"{name}_relu", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("verification", Dense(outputs, use_bias=False))
    return network


def _convolution(network: Network, name: str, filters: int, size: int, strides: int = 1, *inputs: str) -> str:
    sides = (size // 2, size // 2)
    op = Conv2D(filters, size, strides, (sides, sides), use_bias=False, kernel_initializer="he_normal")
    network.add(name, op, *inputs)
    return network.add(f"{name}_norm", GroupNormalization(groups=8))
