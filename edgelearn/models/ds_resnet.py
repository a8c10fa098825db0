"""A residual network of depthwise-separable convolutions for word embeddings."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import Add, AveragePooling2D, BatchNormalization, Conv2D, Dense, DepthwiseConv2D, Flatten, Op, ReLU

FILTERS = 128
STRIDES = (1, 2, 1, 2, 1, 1)  # of the blocks
MOMENTUM = 0.95  # of every BatchNorm


def ds_resnet(
    input_shape: tuple[int, int, int] = (101, 40, 1), width: float = 1, size: int = 128, parts: int = 4
) -> Network:
    """A convolution, DS-CNN blocks with identity shortcuts where the shape stays (Tang and Lin 2018, "Deep residual
    learning for small-footprint keyword spotting"), and an embedding.

    The embedding ends in a BatchNorm without activation, so that it is centred, which cosine similarity to class means
    needs (Wang et al. 2019, "SimpleShot", arXiv 1911.04623).

    Arguments:
    - `input_shape`: (time, frequency, 1).
    - `width`: multiple of 128 filters, rounded to a multiple of 16 (default 1).
    - `size`: values of the embedding (default 128).
    - `parts`: parts within which time is averaged before the embedding, to keep the order of sounds (default 4).
    """
    filters = 16 * round(FILTERS * width / 16)
    network = Network(f"ds_resnet_{filters}_{input_shape[0]}", input_shape)
    _unit(network, "conv", Conv2D(filters, 5, 2, "same", use_bias=False, kernel_initializer="he_normal"))
    for number, strides in enumerate(STRIDES, 1):
        name, x = f"block{number}", network.output.name
        depthwise = DepthwiseConv2D(3, strides, "same", use_bias=False, kernel_initializer="he_normal")
        _unit(network, f"{name}_depthwise", depthwise)
        pointwise = Conv2D(filters, 1, use_bias=False, kernel_initializer="he_normal")
        if strides == 1:
            _unit(network, f"{name}_pointwise", pointwise, activated=False)
            network.add(f"{name}_add", Add(), network.output.name, x)
            network.add(f"{name}_relu", ReLU())
        else:
            _unit(network, f"{name}_pointwise", pointwise)
    time, frequency, _ = network.output.shape
    step = -(-time // parts)
    network.add("pool", AveragePooling2D((step, frequency), (step, frequency), "same"))
    network.add("flatten", Flatten())
    network.add("embedding", Dense(size, use_bias=False))
    network.add("embedding_bn", BatchNormalization(MOMENTUM))
    return network


def _unit(network: Network, name: str, op: Op, activated: bool = True) -> None:
    network.add(name, op)
    network.add(f"{name}_bn", BatchNormalization(MOMENTUM))
    if activated:
        network.add(f"{name}_relu", ReLU())
