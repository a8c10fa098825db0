"""The figures that the cost formula gives for the networks of the paper's experiments."""

import pytest

from edgelearn.compile.precision import layer_traffic, network_traffic
from edgelearn.errors import PlanError
from edgelearn.launch import Traffic
from edgelearn.models import mobilenet_v2, resnet18, vgg16
from edgelearn.ops import Conv2D, Emitter, Epilogue, Format, Target, Traits
from edgelearn.ops import quantize as quantized_copy
from edgelearn.ops import quantized as quantized
from edgelearn.ops.formats import QuantizedTensor, RangeStatistics

KIB = 1024


def test_a_layer_of_resnet18():
    cost = layer_traffic(resnet18(), "conv2_block1_1_conv")
    assert cost.static_bytes == 9 * 64 * 64 + 2 * 56 * 56 * 64 == 428.0 * KIB
    assert cost.dynamic_bytes == 1996.0 * KIB
    assert round(100 * cost.saved_share, 1) == 78.6


def test_a_pointwise_layer_of_mobilenet_v2():
    assert round(100 * layer_traffic(mobilenet_v2(), "block_1_expand").saved_share, 1) == 87.3


@pytest.mark.parametrize("make, percent", ((resnet18, 55.7), (vgg16, 74.4), (mobilenet_v2, 77.4)))
def test_whole_networks(make, percent):
    assert round(100 * network_traffic(make()).saved_share, 1) == percent


def test_bits():
    cost = layer_traffic(vgg16(), "fc2", weights=4, activations=16, accumulators=24, outputs=2)
    assert cost.static_bytes == 4096 * 4096 / 2 + 4096 * 2 + 4096 / 4
    assert cost.dynamic_bytes - cost.static_bytes == 2 * 3 * 4096


def test_a_layer_without_a_kernel():
    with pytest.raises(PlanError, match=r"'flatten' is no convolution or dense layer .*: block1_conv1, "):
        layer_traffic(vgg16(), "flatten")


@pytest.mark.parametrize("dynamic", (False, True))
def test_integer_kernels_move_what_the_formula_says(dynamic):
    """To the byte, beside ranges and what is found of the result."""
    e, fmt, weights = Emitter(Traits()), Format(), Format(symmetric=True)

    def ranged(name: str, shape, fmt: Format = fmt) -> QuantizedTensor:
        return QuantizedTensor(e.tensor(name, shape, dtype="int8"), e.tensor("range", (1, 16)), fmt)

    x, kernel, y = ranged("x", (1, 56, 56, 64)), ranged("w", (3, 3, 64, 64), weights), ranged("y", (1, 56, 56, 64))
    op, found = Conv2D(64, 3, padding="same"), RangeStatistics(e.tensor("found", (16, 16)))
    if dynamic:  # the range comes from what is found of the sums, which are then there as floats
        sums = e.tensor("sums", y.tensor.shape)
        op.emit_linear(e, x, kernel, Target(sums, statistics=found), Epilogue())
        quantized_copy.emit_to_integers(e, sums, y)
    else:
        op.emit_linear(e, x, kernel, Target(y, statistics=found), Epilogue())
    moved = Traffic.of(e.launches).by("tensor")
    share_with = moved.pop("/range") + moved.pop("/found")
    cost = layer_traffic(resnet18(), "conv2_block1_1_conv")
    assert sum(moved.values()) == (cost.dynamic_bytes if dynamic else cost.static_bytes)
    assert share_with == (16 + 3) * 64
