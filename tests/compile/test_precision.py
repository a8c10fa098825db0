from dataclasses import replace

import pytest

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.compile.precision import RangeMode
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph import Network
from edgelearn.ops import Dense, Flatten, Float16, Format
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
