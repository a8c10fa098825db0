"""A small network that tells voices apart."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import (
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    GroupNormalization,
    Op,
    ReLU,
    Rescaling,
    SiLU,
)

FILTERS = (16, 32, 48, 64)
_GROUPS = 8


def speaker_network(input_shape: tuple[int, int, int] = (51, 40, 1), outputs: int = 127) -> Network:
    """A network of depthwise separable convolutions for verification of speakers, with 19,184 weights at 127 outputs.

    It has GroupNormalization: clients have recordings of one person each, whose batch statistics say nothing of others.
    The hidden layer has SiLU. Its inputs are pooled, at least 0 and much alike for all voices. With ReLU a third of its
    units are 0 for everybody, have no gradient and stay so; codewords need the rank of all of them.

    Arguments:
    - `input_shape`: (frames, bands, 1) of log-mel energies (default: 51 frames of 40 bands).
    - `outputs`: units of the last layer, "verification", which has no bias (default 127).
    """
    network = Network(f"speakers_{outputs}", input_shape)
    network.add("scale", Rescaling(0.25, 1.5))  # log-mel energies lie around -6 ± 4
    convolution = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal"}
    _unit(network, "conv", Conv2D(FILTERS[0], 5, 2, **convolution))
    for block, filters in enumerate(FILTERS[1:], start=1):
        _unit(network, f"block{block}_depthwise", DepthwiseConv2D(3, 2, **convolution))
        _unit(network, f"block{block}_pointwise", Conv2D(filters, 1, **convolution))
    network.add("pool", GlobalAveragePooling2D())
    network.add("hidden", Dense(FILTERS[-1]))
    network.add("hidden_silu", SiLU())
    network.add("verification", Dense(outputs, use_bias=False))
    return network


def _unit(network: Network, name: str, op: Op) -> None:
    network.add(name, op)
    network.add(f"{name}_norm", GroupNormalization(groups=_GROUPS))
    network.add(f"{name}_relu", ReLU())
