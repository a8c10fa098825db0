"""The figures that the cost formula gives for the networks of the paper's experiments."""

from dataclasses import replace

import pytest

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.compile.precision import RangeMode, layer_traffic, network_traffic
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph import Network
from edgelearn.launch import Traffic
from edgelearn.models import mobilenet_v2, resnet18, vgg16
from edgelearn.ops import (
    Conv2D,
    Dense,
    Emitter,
    Epilogue,
    Flatten,
    Float16,
    Format,
    Target,
    Traits,
)
from edgelearn.ops import (
    quantize as quantized_copy,
)
from edgelearn.ops import (
    quantized as quantized,
)
from edgelearn.ops.formats import QuantizedTensor, RangeStatistics
from edgelearn.ops.observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, RunningMinMax

OBSERVED, SEARCHED, MEASURED = RangeMode
MIXED = Precision(
    Format(8, symmetric=True, per_channel=True), Format(8), Format(4, rounding="stochastic"),
    InHindsightMinMax(0.8), DSGC(every=10), {"conv1": 8, "dense*": None}, traced=True,
)  # fmt: skip

HALVES = Precision(weights=Float16(), activations=Float16(), norm_inputs=Format(8), exceptions={"conv1": None})


def test_json_comes_back():
    for precision in (Precision(), MIXED, HALVES):
        assert Precision.from_json(precision.to_json()) == precision


def test_exceptions():
    assert MIXED.format("gradients", "conv1") == Format(8, rounding="stochastic")
    assert MIXED.format("gradients", "conv2") == MIXED.gradients
    assert MIXED.format("weights", "dense_1") is None
    assert Precision(exceptions={"conv1": 8}).format("weights", "conv1") is None, "float32 stays float32"
    assert "conv1 8 bits, dense* float32" in str(MIXED)
    assert HALVES.format("activations", "conv1") is None and HALVES.format("activations", "conv2") == Float16()
    assert replace(HALVES, exceptions={"conv*": 6}).format("weights", "conv2") == Float16(), "bits are integers'"
    assert "weights      half precision\n" in str(HALVES)


def test_exceptions_are_of_layers_that_there_are(kernels):
    network = Network("small", (4, 4, 16))
    network.add("flatten", Flatten())
    network.add("dense", Dense(5))
    Precision(exceptions={"input": 4, "den*": None}).check(network)
    with pytest.raises(PlanError, match=r"exception for 'dens', but 'small' has no such layer.*flatten, dense"):
        make_plan(Request(network, precision=Precision(exceptions={"dens": None})), kernels.context.device)


def test_how_programs_get_their_ranges():
    """In hindsight from the second step on; the search of gradients every tenth."""
    assert [MIXED.mode(True, step > 1, step) for step in (1, 2, 11)] == [
        MEASURED,
        OBSERVED,
        SEARCHED,
    ]
    assert MIXED.modes(training=True) == [OBSERVED, MEASURED, SEARCHED]
    assert MIXED.modes(training=False) == [OBSERVED, MEASURED]
    assert MIXED.is_static("activations", SEARCHED, True) and not MIXED.is_static("gradients", SEARCHED, True)
    current = Precision(activations=Format(), observer=CurrentMinMax())
    assert current.modes(training=True) == current.modes(training=False) == [OBSERVED]
    assert not current.is_static("activations", OBSERVED, training=False)
    running = Precision(activations=Format(), observer=RunningMinMax())
    assert running.modes(training=True) == [OBSERVED] and running.modes(training=False) == [
        OBSERVED,
        MEASURED,
    ]
    assert running.is_static("activations", OBSERVED, training=False)
    fixed = Precision(activations=Format(), gradients=Format(), observer=Fixed(), gradient_observer=InHindsightMinMax())
    assert fixed.is_static("activations", MEASURED, True) and not fixed.is_static("gradients", MEASURED, True)
    assert Precision(activations=Format(), observer=Fixed()).modes(training=True) == [OBSERVED]
    assert Precision(weights=Format()).modes(training=True) == [OBSERVED], "weights have their own, always"
    assert Precision(gradients=Float16()).modes(training=True) == [OBSERVED], "halves need none"
    assert HALVES.modes(training=True) == [OBSERVED, MEASURED]


def test_what_cannot_be():
    for kind in ("gradients", "norm_inputs"):
        with pytest.raises(PlanError, match="weights alone"):
            Precision(**{kind: Format(per_channel=True)})
    with pytest.raises(PlanError, match="2 to 16"):
        Precision(exceptions={"a": 1})
    for settings, problem in (
        ({"weights": 8}, r"The format of weights is such as Format\(bits=8\)"),
        ({"gradients": "int8"}, "not 'int8'"),
        ({"observer": "current"}, r"such as CurrentMinMax\(\), not from 'current'"),
        ({"gradient_observer": DSGC}, "not from <class"),
    ):
        with pytest.raises(PlanError, match=problem):
            Precision(**settings)
    for text in (
        "{",
        "[]",
        '{"speed": 1}',
        '{"weights": {"bytes": 1}}',
        '{"weights": "float8"}',
        '{"observer": {"observer": "X"}}',
    ):
        with pytest.raises(FormatError):
            Precision.from_json(text)


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
