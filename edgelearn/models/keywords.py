"""Networks for keywords: DS-CNN (Zhang et al. 2017, "Hello Edge: Keyword spotting on microcontrollers", arXiv
1711.07128), a residual network of its layers for word embeddings, and BC-ResNet (Kim et al. 2021, "Broadcasted
residual learning for efficient keyword spotting", arXiv 2106.04140).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Flatten,
    GlobalAveragePooling2D,
    Mean,
    Op,
    ReLU,
    SiLU,
    Softmax,
    SpatialDropout2D,
    SubSpectralNormalization,
)


@dataclass(frozen=True)
class Size:
    """Size of a DS-CNN: a convolution, then blocks of a depthwise 3 x 3 and a pointwise convolution.

    Arguments:
    - `filters`: of every layer.
    - `blocks`: number of blocks.
    - `strides`, `kernel_size`: of the first convolution, (time, frequency).
    - `block_strides`: of the first block, (time, frequency).
    """

    filters: int
    blocks: int
    strides: tuple[int, int]
    block_strides: tuple[int, int]
    kernel_size: tuple[int, int] = (10, 4)


# Appendix A of the paper; strides as in the authors' code.
SIZES = {"S": Size(64, 4, (2, 2), (1, 1)), "M": Size(172, 4, (2, 1), (2, 2)), "L": Size(276, 5, (2, 1), (2, 2))}


def ds_cnn(
    input_shape: tuple[int, int, int] = (49, 10, 1),
    size: str | Size = "S",
    classes: int | None = 12,
    softmax: bool = True,
) -> Network:
    """DS-CNN. Kernels are initialised as in He et al. 2015.

    Arguments:
    - `input_shape`: (time, frequency, 1); in the paper 10 MFCCs of windows of 40 ms, 20 ms apart.
    - `size`: "S" (default), "M", "L" or a `Size`.
    - `classes`: units of the last layer, "classifier"; None: end in an embedding of `filters` values (default 12).
    - `softmax`: end in a softmax instead of logits (default True).

    Raises ShapeError for an unknown size.
    """
    if isinstance(size, str) and size not in SIZES:
        raise ShapeError(f"DS-CNN comes in sizes {', '.join(SIZES)}, not '{size}': name one of them, or give a Size.")
    chosen, name = (SIZES[size], size.lower()) if isinstance(size, str) else (size, f"{size.filters}x{size.blocks}")
    network = Network(f"ds_cnn_{name}_{input_shape[0]}", input_shape)
    filters = chosen.filters
    first = Conv2D(
        filters, chosen.kernel_size, chosen.strides, "same", use_bias=False, kernel_initializer="he_normal"
    )  # fmt: skip
    _ds_cnn_unit(network, "conv", first)
    for block in range(1, chosen.blocks + 1):
        strides = chosen.block_strides if block == 1 else 1
        depthwise = DepthwiseConv2D(3, strides, "same", use_bias=False, kernel_initializer="he_normal")
        _ds_cnn_unit(network, f"block{block}_depthwise", depthwise)
        pointwise = Conv2D(filters, 1, use_bias=False, kernel_initializer="he_normal")
        _ds_cnn_unit(network, f"block{block}_pointwise", pointwise)
    network.add("pool", GlobalAveragePooling2D())
    if classes is not None:
        network.add("classifier", Dense(classes))
        if softmax:
            network.add("softmax", Softmax())
    return network


def _ds_cnn_unit(network: Network, name: str, op: Op) -> None:
    network.add(name, op)
    network.add(f"{name}_bn", BatchNormalization(momentum=0.96))
    network.add(f"{name}_relu", ReLU())


RESNET_FILTERS = 128
RESNET_STRIDES = (1, 2, 1, 2, 1, 1)  # of the blocks
RESNET_MOMENTUM = 0.95  # of every BatchNorm


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
    filters = 16 * round(RESNET_FILTERS * width / 16)
    network = Network(f"ds_resnet_{filters}_{input_shape[0]}", input_shape)
    _ds_resnet_unit(network, "conv", Conv2D(filters, 5, 2, "same", use_bias=False, kernel_initializer="he_normal"))
    for number, strides in enumerate(RESNET_STRIDES, 1):
        name, x = f"block{number}", network.output.name
        depthwise = DepthwiseConv2D(3, strides, "same", use_bias=False, kernel_initializer="he_normal")
        _ds_resnet_unit(network, f"{name}_depthwise", depthwise)
        pointwise = Conv2D(filters, 1, use_bias=False, kernel_initializer="he_normal")
        if strides == 1:
            _ds_resnet_unit(network, f"{name}_pointwise", pointwise, activated=False)
            network.add(f"{name}_add", Add(), network.output.name, x)
            network.add(f"{name}_relu", ReLU())
        else:
            _ds_resnet_unit(network, f"{name}_pointwise", pointwise)
    time, frequency, _ = network.output.shape
    step = -(-time // parts)
    network.add("pool", AveragePooling2D((step, frequency), (step, frequency), "same"))
    network.add("flatten", Flatten())
    network.add("embedding", Dense(size, use_bias=False))
    network.add("embedding_bn", BatchNormalization(RESNET_MOMENTUM))
    return network


def _ds_resnet_unit(network: Network, name: str, op: Op, activated: bool = True) -> None:
    network.add(name, op)
    network.add(f"{name}_bn", BatchNormalization(RESNET_MOMENTUM))
    if activated:
        network.add(f"{name}_relu", ReLU())


# Table 1 of the paper, times 8 tau: channels, blocks, stride of the frequency in the first block.
BC_STAGES = ((1, 2, 1), (1.5, 2, 2), (2, 4, 2), (2.5, 4, 1))
BC_STEM, BC_EMBEDDING = 2, 4  # channels before and after the stages
BC_WIDTH = 8
SUB_BANDS = 5
DROPOUT = 0.1
BC_MOMENTUM, BC_EPSILON = 0.9, 1e-5  # of every BatchNorm


def bcresnet(
    input_shape: tuple[int, int, int] = (40, 101, 1),
    tau: float = 1,
    classes: int | None = 12,
    softmax: bool = True,
    dropout: float = DROPOUT,
) -> Network:
    """BC-ResNet-`tau`. Kernels are initialised as in He et al. 2015.

    Arguments:
    - `input_shape`: (frequency, time, 1): 40 log-mel bands and any number of frames (default 101, one second at 10 ms).
    - `tau`: width; 1, 1.5, 2, 3, 6 and 8 in the paper (default 1).
    - `classes`: units of the last layer, "classifier"; None: end in an embedding of 32 tau values (default 12).
    - `softmax`: end in a softmax instead of logits (default True).
    - `dropout`: rate of the spatial dropout (default 0.1).
    """
    width = int(BC_WIDTH * tau)
    network = Network(f"bcresnet_{tau:g}_{input_shape[1]}", input_shape)
    stem = Conv2D(int(BC_STEM * width), 5, (2, 1), _around(2, 2), use_bias=False, kernel_initializer="he_normal")
    _bc_unit(network, "stem", stem)
    for stage, (times, blocks, stride) in enumerate(BC_STAGES):
        for block in range(blocks):
            name = f"stage{stage + 1}_block{block + 1}"
            _bc_block(network, name, int(times * width), stride if block == 0 else 1, 2**stage, dropout)
    network.add("tail_depthwise", _depthwise((5, 5), padding=_around(0, 2)))
    _bc_unit(network, "tail", _pointwise(int(BC_EMBEDDING * width)))
    network.add("pool", GlobalAveragePooling2D())
    if classes is not None:
        network.add("classifier", Dense(classes))
        if softmax:
            network.add("softmax", Softmax())
    return network


def _bc_block(network: Network, name: str, filters: int, stride: int, dilation: int, dropout: float) -> None:
    """relu(x + f2(x) + f1(mean of f2(x) over frequency)), figure 2 of the paper: f2 convolves along frequency, f1 along
    time, broadcast to all frequencies. The first block of a stage (figure 2b) changes the number of channels and has no
    shortcut x. Dilations are along time and double from stage to stage."""
    x = network.output
    changes = x.shape[-1] != filters
    if changes:
        _bc_unit(network, f"{name}_pointwise", _pointwise(filters))
    network.add(f"{name}_frequency", _depthwise((3, 1), (stride, 1), _around(1, 0)))
    f2 = network.add(f"{name}_ssn", SubSpectralNormalization(BC_MOMENTUM, BC_EPSILON, SUB_BANDS))
    network.add(f"{name}_mean", Mean(axis=1))
    _bc_unit(network, f"{name}_time", _depthwise((1, 3), 1, _around(0, dilation), (1, dilation)), SiLU())
    f1 = network.add(f"{name}_mix", _pointwise(filters))
    if dropout:
        f1 = network.add(f"{name}_dropout", SpatialDropout2D(dropout))
    network.add(f"{name}_add", Add(), f1, f2, *([] if changes else [x.name]))
    network.add(f"{name}_relu", ReLU())


def _bc_unit(network: Network, name: str, op: Op, activation: Op = ReLU()) -> None:  # noqa: B008
    """A convolution, BatchNorm and an activation."""
    network.add(name, op)
    network.add(f"{name}_bn", BatchNormalization(BC_MOMENTUM, BC_EPSILON))
    network.add(f"{name}_{type(activation).__name__.lower()}", activation)


def _pointwise(filters: int) -> Conv2D:
    return Conv2D(filters, 1, use_bias=False, kernel_initializer="he_normal")


def _depthwise(size: tuple[int, int], strides: Any = 1, padding: Any = "valid", dilation: Any = 1) -> DepthwiseConv2D:
    return DepthwiseConv2D(size, strides, padding, dilation, use_bias=False, kernel_initializer="he_normal")


def _around(frequency: int, time: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (frequency, frequency), (time, time)
