"""DS-CNN (Zhang et al. 2017, "Hello Edge: Keyword spotting on microcontrollers", arXiv 1711.07128)."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, Op, ReLU, Softmax


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
    _unit(network, "conv", first)
    for block in range(1, chosen.blocks + 1):
        strides = chosen.block_strides if block == 1 else 1
        depthwise = DepthwiseConv2D(3, strides, "same", use_bias=False, kernel_initializer="he_normal")
        _unit(network, f"block{block}_depthwise", depthwise)
        pointwise = Conv2D(filters, 1, use_bias=False, kernel_initializer="he_normal")
        _unit(network, f"block{block}_pointwise", pointwise)
    network.add("pool", GlobalAveragePooling2D())
    if classes is not None:
        network.add("classifier", Dense(classes))
        if softmax:
            network.add("softmax", Softmax())
    return network


def _unit(network: Network, name: str, op: Op) -> None:
    network.add(name, op)
    network.add(f"{name}_bn", BatchNormalization(momentum=0.96))
    network.add(f"{name}_relu", ReLU())
