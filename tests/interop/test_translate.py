"""Graphs of a made-up format: what is translated computes the same, and every problem is told at once."""

from math import inf

import numpy as np
import pytest

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop import shapes
from edgelearn.interop.builder import Builder, Value, clamp, held, reach, translate
from edgelearn.interop.canonical import ForeignGraph, Operator, StoredIntegers, TensorInfo
from edgelearn.interop.forms import forms, kinds_of
from edgelearn.ops import (
    Add,
    Clip,
    Concatenate,
    Conv2D,
    HardSwish,
    LeakyReLU,
    MaxPooling2D,
    Multiply,
    ReLU,
    Rescaling,
    Softmax,
    Sum,
    Tanh,
)

HANDLERS = forms(
    {
        "conv": ("conv x kernel:OIHW", {"padding": "padding", "groups": "groups"}),
        "relu": "ReLU",
        "leaky": ("LeakyReLU", {"negative_slope": "alpha=0.3"}),
        "flatten": "flatten",
        "same": "identity",
    },
    channels=1, axis="axis", axes="axes", strides="stride_h stride_w",
)  # fmt: skip


def graph(*operators, constants=None, shape=(1, 3, 8, 6), output=None):
    made = tuple(
        Operator(kind, f"{kind}{n}", inputs, outputs, attributes)
        for n, (kind, inputs, outputs, attributes) in enumerate(operators)
    )
    last = made[-1].outputs[0] if output is None else output
    layout = "NCHW" if len(shape) == 4 else ""
    return ForeignGraph("made up", "tiny", (TensorInfo("x", shape, layout=layout),), (last,), made, constants or {})


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def kinds(translation):
    return [type(node.op).__name__ for node in translation.network.nodes.values()]


def test_all_problems_at_once():
    made = translate(
        graph(
            ("conv", ("x", "k"), ("y",), {}), ("mystery", ("y",), ("z",), {"depth": 3}), ("relu", ("z",), ("r",), {}),
            ("riddle", ("r",), ("s",), {}), ("conv", ("x", "k"), ("t",), {"groups": 2}),
            constants={"k": draw(4, 3, 1, 1)}, output="s",
        ),
        HANDLERS,
        nearest={"riddle": "Dense."},
    )  # fmt: skip
    assert made.network is None
    assert [problem.kind for problem in made.problems] == ["mystery", "riddle", "conv"]
    with pytest.raises(UnsupportedError, match="mystery1") as error:
        made.model_file()
    assert error.value.problems == made.problems
    assert all(text in str(error.value) for text in ("depth=3", "riddle3", "Dense.", "groups=2"))


def test_a_part_of_the_graph():
    whole = graph(("conv", ("x", "k"), ("y",), {}), ("relu", ("y",), ("z",), {}), ("flatten", ("z",), ("f",), {}),
                  constants={"k": draw(4, 3, 1, 1)})  # fmt: skip
    assert [o.kind for o in whole.between((), ("z",)).operators] == ["conv", "relu"]
    part = whole.between(("y",), ("z",), (5, 7, 4))
    assert part.inputs == (TensorInfo("y", (None, 5, 7, 4)),)
    assert kinds(translate(part, HANDLERS)) == ["ReLU"]
    larger = translate(whole.between((), ("z",), (16, 8, 3)), HANDLERS)
    assert larger.network.output.shape == (16, 8, 4)
    with pytest.raises(FormatError, match="nowhere"):
        whole.between(("nowhere",))
    with pytest.raises(FormatError, match="'x'"):
        whole.between(("z",), ("y",))


def test_damaged_graphs():
    with pytest.raises(FormatError, match="missing"):
        translate(graph(("relu", ("missing",), ("y",), {})), HANDLERS)
    with pytest.raises(FormatError, match="flatten0"):
        translate(graph(("flatten", (), ("y",), {})), HANDLERS)
    with pytest.raises(FormatError, match="y"):
        translate(graph(("relu", ("c",), ("y",), {}), constants={"c": draw(3)}), HANDLERS)
    with pytest.raises(FormatError, match="input_shape"):
        translate(graph(("relu", ("x",), ("y",), {}), shape=(None, 3, None, 6)), HANDLERS)


def test_an_entry_gives_an_op_its_name_both_ways():
    made = translate(graph(("leaky", ("x",), ("y",), {"alpha": 0.1}), ("leaky", ("y",), ("z",), {})), HANDLERS)
    assert [node.op for node in made.network.nodes.values()] == [LeakyReLU(0.1), LeakyReLU(0.3)]
    assert kinds_of(HANDLERS)["LeakyReLU"] == "leaky"
    assert HANDLERS["leaky"].attributes(negative_slope=0.1) == {"alpha": 0.1}
    assert HANDLERS["conv"].attributes(strides=(2, 1)) == {"stride_h": 2, "stride_w": 1}


# A value reshaped and transposed as NumPy does it, without a layer that moves anything
MOVES = {
    "nothing": (lambda b, x: x, lambda a: a),
    "the last axes as one": (lambda b, x: shapes.flatten(b, x, start=2), lambda a: a.reshape(1, 6, 20)),
    "a channel shuffle": (
        lambda b, x: shapes.reshape(
            b, shapes.transpose(b, shapes.reshape(b, x, (1, 2, 3, 4, 5)), (0, 2, 1, 3, 4)), (1, -1, 4, 5)
        ),
        lambda a: a.reshape(1, 2, 3, 4, 5).transpose(0, 2, 1, 3, 4).reshape(1, 6, 4, 5),
    ),
    **{
        f"a reshape to {shape}": (lambda b, x, s=shape: shapes.reshape(b, x, s), lambda a, s=shape: a.reshape(s))
        for shape in [(1, 120), (1, 12, 10), (120,), (6, 4, 5), (1, 3, 2, 20), (1, 1, 6, 20, 1)]
    },
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_nothing(name):
    b, memory = Builder("tiny", "NCHW"), np.arange(120.0).reshape(1, 4, 5, 6)
    image, (move, numpy) = b.input(TensorInfo("x", (1, 6, 4, 5), layout="NCHW")), MOVES[name]
    x, expected = move(b, image), numpy(memory.transpose(0, 3, 1, 2))
    order = [factor for axis in x.axes for factor in axis if factor >= 0]
    assert not b.layers and b.shape(x.layer) == (4, 5, 6) and x.shape == expected.shape
    assert np.array_equal(memory.reshape(x.sizes).transpose(order).reshape(x.shape), expected)
    assert shapes.reshape(b, x, (1, 6, 4, 5)).shape == (1, 6, 4, 5)


def test_squeeze_and_unsqueeze():
    b = Builder("tiny")
    x = b.input(TensorInfo("x", (1, 1, 7)))
    assert shapes.squeeze(b, x, [1]).shape == (1, 7)
    assert shapes.squeeze(b, x).shape == (7,)
    assert shapes.unsqueeze(b, x, [0, 3]).shape == (1, 1, 1, 1, 7)
    assert shapes.unsqueeze(b, shapes.squeeze(b, x), [0]).batch_axis == 0


def test_a_batch_stays_a_batch():
    x = Value.of("input", (4, 5, 6), (2, 0, 1), batch=2)
    merged = x.reshaped((12, 20))
    assert (x.shape, x.reshaped((2, 120)).shape, merged.shape) == ((2, 6, 4, 5), (2, 120), (12, 20))
    assert merged.batch_axis is None and merged.reshaped((2, 6, 20)).batch_axis == 0
    assert x.reshaped((3, 80)) is None


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        (Conv2D(3, 1), [(0, 1)], (-inf, inf)),
        (ReLU(), [(-4, 3)], (0, 3)),
        (ReLU(6), [(-inf, inf)], (0, 6)),
        (Clip(-1), [(-inf, inf)], (-1, inf)),
        (MaxPooling2D(2), [(-4, 3)], (-4, 3)),
        (HardSwish(), [(1, 3)], (0, 3)),
        (Tanh(), [(-inf, inf)], (-1, 1)),
        (Softmax(), [(-inf, inf)], (0, 1)),
        (Rescaling(-2.0, 1.0), [(0, inf)], (-inf, 1)),
        (Add(), [(0, 3), (0, 4), (-1, 0)], (-1, 7)),
        (Concatenate(), [(0, 3), (-1, 4)], (-1, 4)),
        (Multiply(), [(0, inf), (0, 0)], (0, 0)),
        (Multiply(), [(-2, 3), (0, 4)], (-8, 12)),
        (Sum(), [(0, 3)], (0, inf)),
    ],
)
def test_the_values_that_an_op_can_have(op, inputs, expected):
    assert reach(op, inputs) == expected


@pytest.mark.parametrize(
    ("values", "scale", "zero", "dtype", "expected"),
    [
        ((-inf, inf), 6 / 255, 0, "uint8", ReLU(6)),
        ((-inf, inf), 0.023528477, -128, "int8", ReLU(6)),  # as trained: 5.99976
        ((0, inf), 6 / 255, 0, "uint8", ReLU(6)),
        ((-inf, inf), 0.5, 0, "uint8", ReLU(127.5)),
        ((-inf, inf), 2 / 255, 127, "uint8", Clip(-1.0, 1.0)),
        ((-inf, inf), 4 / 255, 100, "uint8", None),  # calibrated
        ((0, inf), 4 / 255, 0, "uint8", None),
        ((0, 1), 1 / 256, -128, "int8", None),  # a softmax
        ((-1, 1), 1 / 128, 0, "int8", None),  # a tanh
        ((-inf, inf), 1e-4, 0, "int16", None),
    ],
)
def test_the_clamp_that_a_range_stands_for(values, scale, zero, dtype, expected):
    limits = held(StoredIntegers(np.float32([scale]), np.array([zero]), dtype=dtype))
    assert clamp(values, limits, scale)[0] == expected


def test_what_has_no_range():
    assert held(StoredIntegers(np.float32([0.1, 0.2]), np.array([0, 0]))) is None
    assert held(StoredIntegers(np.float32([0.1]), np.array([0]), dtype="int32")) is None
    assert held(StoredIntegers(np.float32([0]), np.array([0]))) is None


def test_a_narrower_range_behind_a_convolution():
    """A convolution in a calibrated range, then integers of 0 to 6: the clamp is a layer, where the network has it."""
    wide, narrow = (StoredIntegers(np.float32([s]), np.array([z])) for s, z in ((0.1, 5), (6 / 255, -128)))
    infos = [
        TensorInfo(name, (1, 3, 8, 6), "int8", "NCHW", q) for name, q in (("x", narrow), ("y", wide), ("z", narrow))
    ]
    operators = (Operator("conv", "conv", ("x", "k"), ("y",)), Operator("same", "narrow", ("y",), ("z",)),
                 Operator("relu", "relu", ("z",), ("r",)))  # fmt: skip
    graph = ForeignGraph("made up", "tiny", (infos[0],), ("r",), operators, {"k": draw(3, 3, 1, 1)},
                         {info.name: info for info in infos})  # fmt: skip
    made = translate(graph, HANDLERS)
    assert kinds(made) == ["Conv2D", "ReLU", "ReLU"]
    assert made.network.nodes["narrow_range"].op == ReLU(6)
    assert made.quantization["narrow_range"] is narrow
    assert any("'narrow_range'" in note for note in made.notes)
    assert any("'y'" in note for note in made.notes)
