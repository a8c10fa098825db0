"""ResNet-18 (He et al. 2016, "Deep residual learning for image recognition", arXiv 1512.03385), with layer names like
those of keras.applications' deeper ResNets."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, MaxPooling2D, ReLU, Softmax

FILTERS = (64, 128, 256, 512)  # of the stages conv2 to conv5, two blocks each


def resnet18(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """ResNet-18, table 1 of the paper; shortcuts are projections where shapes change (option B of section 3.3). Input:
    RGB, each channel with mean 0 and deviation 1. Kernels are initialised as in He et al. 2015.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"resnet18_{alpha:g}_{input_shape[0]}", input_shape)
    _convolution(network, "conv1", int(64 * alpha), 7, strides=2)
    network.add("conv1_relu", ReLU())
    network.add("pool1_pool", MaxPooling2D(3, 2, ((1, 1), (1, 1))))
    return _body(network, alpha, classes, softmax)


def resnet18_cifar(
    input_shape: tuple[int, int, int] = (32, 32, 3), alpha: float = 1.0, classes: int = 10, softmax: bool = True
) -> Network:
    """`resnet18` for 32 x 32 pictures, as used in papers on quantized training: the stem is a 3 x 3 convolution of
    stride 1 without pooling, so that the stages see 32, 16, 8 and 4 pixels."""
    network = Network(f"resnet18_cifar_{alpha:g}_{input_shape[0]}", input_shape)
    _convolution(network, "conv1", int(64 * alpha), 3)
    network.add("conv1_relu", ReLU())
    return _body(network, alpha, classes, softmax)


def _body(network: Network, alpha: float, classes: int, softmax: bool) -> Network:
    for stage, filters in enumerate(FILTERS, start=2):
        for block in (1, 2):
            strides = 2 if block == 1 and stage > 2 else 1
            _block(network, f"conv{stage}_block{block}", int(filters * alpha), strides)
    network.add("avg_pool", GlobalAveragePooling2D())
    network.add("predictions", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def _block(network: Network, name: str, filters: int, strides: int) -> None:
    """relu(x + F(x)), figure 2 of the paper."""
    x = network.output
    shortcut = x.name
    if x.shape[-1] != filters or strides > 1:
        shortcut = _convolution(network, f"{name}_0", filters, 1, strides, x.name)
    _convolution(network, f"{name}_1", filters, 3, strides, x.name)
    network.add(f"{name}_1_relu", ReLU())
    residual = _convolution(network, f"{name}_2", filters, 3)
    network.add(f"{name}_add", Add(), shortcut, residual)
    network.add(f"{name}_out", ReLU())


def _convolution(network: Network, name: str, filters: int, size: int, strides: int = 1, *inputs: str) -> str:
    """A convolution and BatchNorm. Padding is symmetric ("same" would pad only at the bottom and right for stride
    2)."""
    sides = (size // 2, size // 2)
    op = Conv2D(filters, size, strides, (sides, sides), use_bias=False, kernel_initializer="he_normal")
    network.add(f"{name}_conv", op, *inputs)
    return network.add(f"{name}_bn", BatchNormalization(momentum=0.9, epsilon=1e-5))
