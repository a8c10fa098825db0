"""Graphs of a made-up format: what is translated computes the same, and every problem is told at once."""

import numpy as np
import pytest

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop.builder import translate
from edgelearn.interop.canonical import ForeignGraph, Operator, TensorInfo
from edgelearn.interop.forms import forms, kinds_of
from edgelearn.ops import LeakyReLU

HANDLERS = forms(
    {
        "conv": ("conv x kernel:OIHW", {"padding": "padding", "groups": "groups"}),
        "relu": "ReLU",
        "relu6": "relu6",
        "add": "add",
        "multiply": "mul *",
        "sigmoid": "Sigmoid",
        "leaky": ("LeakyReLU", {"negative_slope": "alpha=0.3"}),
        "pad": ("pad x", {"sides": "sides"}),
        "mean": "mean x",
        "flatten": "flatten",
        "transpose": ("transpose x", {"order": "order"}),
        "matmul": "dense",
        "concat": "concatenate",
        "split": ("split x", {"sizes": "sizes"}),
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


def infer(translation, x):
    """The network's output, by the ops' definitions, for an input in the file's order."""
    network, weights = translation.network, translation.weights
    found = {"input": x.transpose(0, 2, 3, 1) if x.ndim == 4 else x}
    for node in network.nodes.values():
        own = {p.role: weights[p.name] for p in network.parameters.values() if p.layer == node.name}
        found[node.name] = node.op.reference_forward([found[name] for name in node.inputs], own)
        assert found[node.name].shape[1:] == node.shape
    return found[network.output.name]


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def kinds(translation):
    return [type(node.op).__name__ for node in translation.network.nodes.values()]


def test_a_classifier_behind_a_flattened_image():
    kernel, matrix = draw(4, 3, 1, 1), draw(4 * 48, 5)
    made = translate(
        graph(
            ("conv", ("x", "k"), ("y",), {}), ("relu", ("y",), ("z",), {}),
            ("flatten", ("z",), ("f",), {}), ("matmul", ("f", "m"), ("p",), {}), ("add", ("p", "c"), ("q",), {}),
            constants={"k": kernel, "m": matrix, "c": draw(5)},
        ),
        HANDLERS,
    )  # fmt: skip
    x = draw(2, 3, 8, 6)
    y = np.maximum(np.einsum("nchw,oc->nohw", x, kernel[:, :, 0, 0]), 0)
    assert np.allclose(infer(made, x), y.reshape(2, -1) @ matrix + draw(5), atol=1e-4)
    assert kinds(made) == ["Conv2D", "ReLU", "Reshape", "Dense"]  # the sum became the bias
    assert made.layers["conv0"] == ("conv0",)
    assert np.array_equal(made.weights["conv0/kernel"], kernel.transpose(2, 3, 1, 0))


def test_explicit_pads_become_the_convolution_s():
    made = translate(
        graph(
            ("pad", ("x",), ("p",), {"sides": [(0, 0), (0, 0), (1, 1), (1, 1)]}), ("conv", ("p", "k"), ("y",), {}),
            constants={"k": draw(4, 3, 3, 3)},
        ),
        HANDLERS,
    )  # fmt: skip
    assert kinds(made) == ["Conv2D"]
    assert made.network.output.op.padding == "same"
    assert made.network.output.shape == (8, 6, 4)


def test_a_batchnorm_split_into_product_and_sum():
    factor, shift = draw(3, 1, 1), draw(1, 3, 1, 1) + 1
    made = translate(
        graph(
            ("multiply", ("x", "f"), ("y",), {}), ("add", ("y", "s"), ("z",), {}), constants={"f": factor, "s": shift}
        ),
        HANDLERS,
    )
    x = draw(2, 3, 8, 6)
    assert np.allclose(infer(made, x).transpose(0, 3, 1, 2), x * factor + shift, atol=1e-6)
    assert kinds(made) == ["Scale", "Bias"]
    assert made.network.trainable == {"multiply0/scale", "add1/bias"}


def test_numbers_in_a_row_are_one_frozen_layer():
    two, half = np.float32(2), np.float32(0.5)
    made = translate(
        graph(
            ("multiply", ("x", "two"), ("y",), {}), ("add", ("y", "half"), ("z",), {}), ("relu", ("z",), ("r",), {}),
            ("multiply", ("r", "two"), ("s",), {}), ("multiply", ("s", "half"), ("t",), {}),
            constants={"two": two, "half": half},
        ),
        HANDLERS,
    )  # fmt: skip
    assert kinds(made) == ["Rescaling", "ReLU"]
    x = draw(2, 3, 8, 6)
    assert np.allclose(infer(made, x).transpose(0, 3, 1, 2), np.maximum(2 * x + 0.5, 0), atol=1e-6)


def test_parts_of_the_channels_put_together_again():
    made = translate(
        graph(
            ("split", ("x",), ("a", "b"), {"axis": 1, "sizes": (1, 2)}), ("relu", ("a",), ("c",), {}),
            ("concat", ("b", "c"), ("y",), {"axis": 1}), ("mean", ("y",), ("m",), {"axes": (2, 3)}),
        ),
        HANDLERS,
    )  # fmt: skip
    x = draw(2, 3, 8, 6)
    expected = np.concatenate([x[:, 1:], np.maximum(x[:, :1], 0)], 1).mean((2, 3))
    assert np.allclose(infer(made, x), expected, atol=1e-6)


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
