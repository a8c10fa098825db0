"""Networks for keywords: DS-CNN (Zhang et al. 2017, "Hello Edge: Keyword spotting on microcontrollers", arXiv
1711.07128), a residual network of its layers for word embeddings, and BC-ResNet (Kim et al. 2021, "Broadcasted
residual learning for efficient keyword spotting", arXiv 2106.04140).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Dense,
    Flatten,
    Mean,
    Op,
    ReLU,
    SiLU,
    SpatialDropout2D,
    SubSpectralNormalization,
)

from .parts import classify, conv, depthwise, unit


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

    def add(name: str, op: Op) -> None:
        unit(network, name, op, ReLU(), BatchNormalization(momentum=0.96))

    add("conv", conv(chosen.filters, chosen.kernel_size, chosen.strides))
    for block in range(1, chosen.blocks + 1):
        add(f"block{block}_depthwise", depthwise(3, chosen.block_strides if block == 1 else 1))
        add(f"block{block}_pointwise", conv(chosen.filters, padding="valid"))
    return classify(network, classes, softmax, "classifier", "pool")


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
    norm = BatchNormalization(RESNET_MOMENTUM)
    unit(network, "conv", conv(filters, 5, 2), ReLU(), norm)
    for number, strides in enumerate(RESNET_STRIDES, 1):
        name, x = f"block{number}", network.output.name
        unit(network, f"{name}_depthwise", depthwise(3, strides), ReLU(), norm)
        pointwise = conv(filters, padding="valid")
        y = unit(network, f"{name}_pointwise", pointwise, ReLU() if strides > 1 else None, norm)
        if strides == 1:
            network.add(f"{name}_add", Add(), y, x)
            network.add(f"{name}_relu", ReLU())
    time, frequency, _ = network.output.shape
    step = -(-time // parts)
    network.add("pool", AveragePooling2D((step, frequency), (step, frequency), "same"))
    network.add("flatten", Flatten())
    network.add("embedding", Dense(size, use_bias=False))
    network.add("embedding_bn", norm)
    return network


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
    _bc_unit(network, "stem", conv(int(BC_STEM * width), 5, (2, 1), _around(2, 2)))
    for stage, (times, blocks, stride) in enumerate(BC_STAGES):
        for block in range(blocks):
            name = f"stage{stage + 1}_block{block + 1}"
            _bc_block(network, name, int(times * width), stride if block == 0 else 1, 2**stage, dropout)
    network.add("tail_depthwise", depthwise((5, 5), padding=_around(0, 2)))
    _bc_unit(network, "tail", conv(int(BC_EMBEDDING * width), padding="valid"))
    return classify(network, classes, softmax, "classifier", "pool")


def _bc_block(network: Network, name: str, filters: int, stride: int, dilation: int, dropout: float) -> None:
    """relu(x + f2(x) + f1(mean of f2(x) over frequency)), figure 2 of the paper: f2 convolves along frequency, f1 along
    time, broadcast to all frequencies. The first block of a stage (figure 2b) changes the number of channels and has no
    shortcut x. Dilations are along time and double from stage to stage."""
    x = network.output
    changes = x.shape[-1] != filters
    if changes:
        _bc_unit(network, f"{name}_pointwise", conv(filters, padding="valid"))
    network.add(f"{name}_frequency", depthwise((3, 1), (stride, 1), _around(1, 0)))
    f2 = network.add(f"{name}_ssn", SubSpectralNormalization(BC_MOMENTUM, BC_EPSILON, SUB_BANDS))
    network.add(f"{name}_mean", Mean(axis=1))
    _bc_unit(network, f"{name}_time", depthwise((1, 3), 1, _around(0, dilation), (1, dilation)), SiLU())
    f1 = network.add(f"{name}_mix", conv(filters, padding="valid"))
    if dropout:
        f1 = network.add(f"{name}_dropout", SpatialDropout2D(dropout))
    network.add(f"{name}_add", Add(), f1, f2, *([] if changes else [x.name]))
    network.add(f"{name}_relu", ReLU())


def _bc_unit(network: Network, name: str, op: Op, activation: Op = ReLU()) -> None:  # noqa: B008
    kind = type(activation).__name__.lower()
    unit(network, name, op, activation, BatchNormalization(BC_MOMENTUM, BC_EPSILON), activation_name=f"{{}}_{kind}")


def _around(frequency: int, time: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (frequency, frequency), (time, time)
