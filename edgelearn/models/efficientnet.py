"""EfficientNet-B0 (Tan and Le 2019, arXiv 1905.11946), with the layer names of keras.applications."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    GlobalAveragePooling2D,
    Op,
    Sigmoid,
    SiLU,
    Softmax,
)

from .mobilenet_v2 import divisible
from .squeeze import add_squeeze_excite

# Table 1 of the paper: kernel size, expansion, channels, blocks, stride of the first block.
STAGES = (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)  # fmt: skip
STEM, HEAD = 32, 1280  # channels of the first and the last convolution
SQUEEZE = 0.25  # channels of a squeeze, of the block's input


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
    _unit(network, "stem_{}", "conv", _conv(divisible(STEM * alpha), 3, 2))
    for stage, (size, expansion, channels, blocks, stride) in enumerate(STAGES, start=1):
        for block in range(blocks):
            name = f"block{stage}{chr(ord('a') + block)}_{{}}"
            _block(network, name, size, expansion, divisible(channels * alpha), stride if block == 0 else 1)
    _unit(network, "top_{}", "conv", _conv(divisible(HEAD * alpha)))
    network.add("avg_pool", GlobalAveragePooling2D())
    if dropout:
        network.add("top_dropout", Dropout(dropout))
    network.add("predictions", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def _block(network: Network, name: str, size: int, expansion: int, filters: int, stride: int) -> None:
    """Expand, filter, squeeze and excite, project, with a shortcut where the shape stays."""
    x = network.output
    channels = x.shape[-1]
    if expansion > 1:
        _unit(network, name, "expand_conv", _conv(channels * expansion), "expand_{}")
    depthwise = DepthwiseConv2D(size, stride, "same", use_bias=False, kernel_initializer="he_normal")
    _unit(network, name, "dwconv", depthwise)
    names = [name.format(part) for part in ("se_reduce", "se_expand")]
    add_squeeze_excite(network, names, max(1, int(channels * SQUEEZE)), SiLU(), Sigmoid())
    network.add(name.format("project_conv"), _conv(filters))
    y = network.add(name.format("project_bn"), BatchNormalization())
    if stride == 1 and network.shape_of(y) == x.shape:
        network.add(name.format("add"), Add(), x.name, y)


def _unit(network: Network, name: str, layer: str, op: Op, part: str = "{}") -> None:
    """A convolution, BatchNorm and SiLU."""
    network.add(name.format(layer), op)
    network.add(name.format(part.format("bn")), BatchNormalization())
    network.add(name.format(part.format("activation")), SiLU())


def _conv(filters: int, size: int = 1, strides: int = 1) -> Conv2D:
    return Conv2D(filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal")
