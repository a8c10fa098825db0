"""MobileNet V1 (Howard et al. 2017, arXiv 1704.04861), with the layer names of keras.applications."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, ReLU, Softmax

FILTERS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
REDUCES = (2, 4, 6, 12)  # blocks whose depthwise convolution has stride 2
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
    for block, filters in enumerate(FILTERS, start=1):
        stride = 2 if block in REDUCES else 1
        padding = HALVE if stride == 2 else "same"
        unit(f"conv_dw_{block}", DepthwiseConv2D(3, strides=stride, padding=padding, use_bias=False))
        unit(f"conv_pw_{block}", Conv2D(int(filters * alpha), 1, use_bias=False))
    network.add("global_average_pooling2d", GlobalAveragePooling2D())
    network.add("dense", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network
