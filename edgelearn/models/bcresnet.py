"""BC-ResNet (Kim et al. 2021, "Broadcasted residual learning for efficient keyword spotting", arXiv 2106.04140)."""

from __future__ import annotations

from typing import Any

from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    Mean,
    Op,
    ReLU,
    SiLU,
    Softmax,
    SpatialDropout2D,
    SubSpectralNormalization,
)

# Table 1 of the paper, times 8 tau: channels, blocks, stride of the frequency in the first block.
STAGES = ((1, 2, 1), (1.5, 2, 2), (2, 4, 2), (2.5, 4, 1))
STEM, EMBEDDING = 2, 4  # channels before and after the stages
WIDTH = 8
SUB_BANDS = 5
DROPOUT = 0.1
MOMENTUM, EPSILON = 0.9, 1e-5  # of every BatchNorm


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
    width = int(WIDTH * tau)
    network = Network(f"bcresnet_{tau:g}_{input_shape[1]}", input_shape)
    stem = Conv2D(int(STEM * width), 5, (2, 1), _around(2, 2), use_bias=False, kernel_initializer="he_normal")
    _unit(network, "stem", stem)
    for stage, (times, blocks, stride) in enumerate(STAGES):
        for block in range(blocks):
            name = f"stage{stage + 1}_block{block + 1}"
            _block(network, name, int(times * width), stride if block == 0 else 1, 2**stage, dropout)
    network.add("tail_depthwise", _depthwise((5, 5), padding=_around(0, 2)))
    _unit(network, "tail", _pointwise(int(EMBEDDING * width)))
    network.add("pool", GlobalAveragePooling2D())
    if classes is not None:
        network.add("classifier", Dense(classes))
        if softmax:
            network.add("softmax", Softmax())
    return network


def _block(network: Network, name: str, filters: int, stride: int, dilation: int, dropout: float) -> None:
    """relu(x + f2(x) + f1(mean of f2(x) over frequency)), figure 2 of the paper: f2 convolves along frequency, f1 along
    time, broadcast to all frequencies. The first block of a stage (figure 2b) changes the number of channels and has no
    shortcut x. Dilations are along time and double from stage to stage."""
    x = network.output
    changes = x.shape[-1] != filters
    if changes:
        _unit(network, f"{name}_pointwise", _pointwise(filters))
    network.add(f"{name}_frequency", _depthwise((3, 1), (stride, 1), _around(1, 0)))
    f2 = network.add(f"{name}_ssn", SubSpectralNormalization(MOMENTUM, EPSILON, SUB_BANDS))
    network.add(f"{name}_mean", Mean(axis=1))
    _unit(network, f"{name}_time", _depthwise((1, 3), 1, _around(0, dilation), (1, dilation)), SiLU())
    f1 = network.add(f"{name}_mix", _pointwise(filters))
    if dropout:
        f1 = network.add(f"{name}_dropout", SpatialDropout2D(dropout))
    network.add(f"{name}_add", Add(), f1, f2, *([] if changes else [x.name]))
    network.add(f"{name}_relu", ReLU())


def _unit(network: Network, name: str, op: Op, activation: Op = ReLU()) -> None:  # noqa: B008
    """A convolution, BatchNorm and an activation."""
    network.add(name, op)
    network.add(f"{name}_bn", BatchNormalization(MOMENTUM, EPSILON))
    network.add(f"{name}_{type(activation).__name__.lower()}", activation)


def _pointwise(filters: int) -> Conv2D:
    return Conv2D(filters, 1, use_bias=False, kernel_initializer="he_normal")


def _depthwise(size: tuple[int, int], strides: Any = 1, padding: Any = "valid", dilation: Any = 1) -> DepthwiseConv2D:
    return DepthwiseConv2D(size, strides, padding, dilation, use_bias=False, kernel_initializer="he_normal")


def _around(frequency: int, time: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (frequency, frequency), (time, time)
