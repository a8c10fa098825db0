"""DS-CNN (Zhang et al. 2017, "Hello Edge: Keyword spotting on microcontrollers", arXiv 1711.07128)."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, Op, ReLU, Softmax


@dataclass(frozen=True)
class Size:
    """A convolution of `kernel_size` and `strides`, then `blocks` depthwise 3 x 3 and pointwise ones, the first of them
    with `block_strides`; all of them have `filters`. Sizes are (time, frequency), as the input."""

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
    """DS-CNN-S, -M or -L, or a plain depthwise-separable network of any other `Size`. Ends in a Dense layer called
    "classifier" and, unless logits are wanted, a softmax; with `classes` None in the global average before it, an
    embedding of `filters` values.

    The input is (time, frequency, 1): 10 MFCCs of windows of 40 ms, 20 ms apart, in the paper. Kernels begin as He et
    al. 2015 draw them. Raises ShapeError for an unknown size.
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
