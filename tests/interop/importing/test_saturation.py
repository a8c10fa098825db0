"""Ranges of integers that stand for clamps, and those that don't."""

from math import inf

import numpy as np
import pytest

from edgelearn.interop.builder import clamp, held, reach, translate
from edgelearn.interop.canonical import ForeignGraph, Operator, Quantization, TensorInfo
from edgelearn.ops import (
    Add,
    Clip,
    Concatenate,
    Conv2D,
    HardSwish,
    MaxPooling2D,
    Multiply,
    Op,
    ReLU,
    Rescaling,
    Softmax,
    Sum,
    Tanh,
)  # fmt: skip

from .test_translate import HANDLERS, draw, kinds

HANDLERS = {**HANDLERS, "same": lambda b, op, x: x}


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
def test_the_values_that_an_op_can_have(op: Op, inputs, expected):
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
    limits = held(Quantization(np.float32([scale]), np.array([zero]), dtype=dtype))
    assert clamp(values, limits, scale)[0] == expected


def test_what_has_no_range():
    assert held(Quantization(np.float32([0.1, 0.2]), np.array([0, 0]))) is None
    assert held(Quantization(np.float32([0.1]), np.array([0]), dtype="int32")) is None
    assert held(Quantization(np.float32([0]), np.array([0]))) is None


def test_a_narrower_range_behind_a_convolution():
    """A convolution in a calibrated range, then integers of 0 to 6: the clamp is a layer, where the network has it."""
    wide, narrow = (Quantization(np.float32([s]), np.array([z])) for s, z in ((0.1, 5), (6 / 255, -128)))
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
