import json
import re
import time
from functools import partial

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.errors import FormatError, PlanError, ShapeError
from edgelearn.graph import INPUT, Network, split_frozen
from edgelearn.graph.rewrites import fuse
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.models import mobilenet_v1
from edgelearn.ops import Conv2D, Dense, ReLU
from edgelearn.train import Model


def tiny() -> Network:
    net = Network("tiny", (8, 9, 3))
    net.add("conv", Conv2D(20, (3, 2), strides=2, padding=((0, 1), (2, 0)), dilation_rate=(1, 2)))
    net.add("bn", ops.BatchNormalization(momentum=0.5))
    net.add("relu", ReLU(6))
    net.add("dw", ops.DepthwiseConv2D(3, padding="same", use_bias=False))
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    net.add("softmax", ops.Softmax())
    return net


class TestJson:
    @pytest.mark.parametrize("make", [tiny, lambda: mobilenet_v1((64, 64, 3), 0.25, 5).freeze("conv*", "*/bias")])
    def test_round_trip(self, make):
        net = make()
        replay = Network.from_json(net.to_json())
        assert replay.nodes == net.nodes
        assert replay.parameters == net.parameters
        assert replay.trainable == net.trainable
        assert (replay.name, replay.input_shape, replay.flops) == (net.name, net.input_shape, net.flops)
        assert replay.to_json() == net.to_json()

    def test_nothing_trained(self):
        assert Network.from_json(tiny().freeze().to_json()).trainable == set()

    def test_no_parameters(self):
        net = Network("pool", (4, 4, 3))
        net.add("pool", ops.GlobalAveragePooling2D())
        assert Network.from_json(net.to_json()).nodes == net.nodes

    def test_names_that_look_like_patterns(self):
        net = Network("n", (4,))
        net.add("dense[1]", Dense(3))
        net.add("dense*", Dense(3))
        net.trainable -= {"dense*/bias"}
        assert Network.from_json(net.to_json()).trainable == net.trainable


class TestBuilding:
    def test_counts(self):
        net = tiny()
        assert net.count(["conv/kernel", "conv/bias"]) == 3 * 2 * 3 * 20 + 20
        assert net.count() == 3 * 2 * 3 * 20 + 20 + 4 * 20 + 9 * 20 + 20 * 4 + 4
        # the paper's table 8: 569 million multiply-adds, 4.2 million parameters (with BatchNorm and 1001 classes more)
        mobilenet = mobilenet_v1()
        assert mobilenet.flops / 2 == pytest.approx(569e6, rel=2e-3)
        assert mobilenet.count() == 4_253_864


class TestFreezing:
    def test_patterns(self):
        net = tiny()
        assert net.freeze("conv", "*/gamma").trainable == {"bn/beta", "dw/kernel", "dense/kernel", "dense/bias"}
        assert net.freeze().trainable == set()
        assert net.unfreeze("d*/kernel").trainable == {"dw/kernel", "dense/kernel"}
        assert net.unfreeze("bn").trainable == {"dw/kernel", "dense/kernel", "bn/gamma", "bn/beta"}

    def test_statistics_are_never_trained(self):
        assert not any("moving" in name for name in tiny().unfreeze().trainable)
        assert tiny().freeze().unfreeze("*/moving_mean").trainable == set()

    def test_order_and_repetition(self):
        assert tiny().match("dense", "conv/kernel", "dense/*") == ["dense/kernel", "dense/bias", "conv/kernel"]


class TestInitialize:
    def test_depends_on_seed_and_name_alone(self):
        a, b, other = tiny().initialize(1), tiny().initialize(1), tiny().initialize(2)
        assert all(np.array_equal(a[name], b[name]) for name in a)
        assert not np.array_equal(a["dense/kernel"], other["dense/kernel"])
        bigger = tiny()
        bigger.add("more", Dense(3), "pool")
        assert np.array_equal(bigger.initialize(1)["dense/kernel"], a["dense/kernel"])

    def test_glorot(self):
        kernel = mobilenet_v1((32, 32, 3)).initialize()["conv_pw_13/kernel"]
        limit = np.sqrt(6 / 2048)
        assert kernel.dtype == np.float32
        assert abs(kernel).max() <= limit
        assert kernel.std() == pytest.approx(limit / np.sqrt(3), rel=0.01)
        assert set(np.unique(tiny().initialize()["bn/moving_variance"])) == {1.0}
        assert not tiny().initialize()["conv/bias"].any()

    def test_numbers_of_numpy(self):
        """As in `classes=labels.max() + 1`."""
        net = Network("n", (np.int64(8), 8, 3))
        net.add("conv", Conv2D(np.int64(8), (np.int64(3), 3), strides=np.int32(2), padding="same"))
        net.add("pool", ops.GlobalAveragePooling2D())
        net.add("dense", Dense(np.arange(3).max() + 1))
        same = Network("n", (8, 8, 3))
        same.add("conv", Conv2D(8, (3, 3), strides=2, padding="same"))
        same.add("pool", ops.GlobalAveragePooling2D())
        same.add("dense", Dense(3))
        assert net.to_json() == same.to_json()


def two_by_two() -> Network:
    """Two inputs and two outputs, one of which another layer reads."""
    net = Network("two", {"picture": (6, 5, 3), "place": (4,)})
    net.add("conv", Conv2D(8, 3), "picture")
    net.add("relu", ReLU())
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("both", ops.Concatenate(), "pool", "place")
    net.add("features", Dense(5))
    net.add("kind", Dense(3))
    net.outputs = ("kind", "features")
    return net


class TestSeveral:
    """Networks with several inputs and outputs."""

    def test_shapes_and_names(self):
        net = two_by_two()
        assert net.inputs == {"picture": (6, 5, 3), "place": (4,)}
        assert net.shape_of("place") == (4,)
        assert net.nodes["both"].shape == (12,)
        assert net.outputs == ("kind", "features")
        for read in (lambda: net.output, lambda: net.input_shape):
            with pytest.raises(PlanError, match="'two'"):
                read()

    def test_one_output_that_is_not_the_last_layer(self):
        net = tiny()
        assert net.outputs == ("softmax",)
        net.outputs = "dense"
        assert (net.outputs, net.output.name) == (("dense",), "dense")
        net.add("more", Dense(2), "pool")
        assert net.outputs == ("dense",)

    def test_round_trip(self):
        net = two_by_two()
        again = Network.from_json(net.to_json())
        assert (again.inputs, again.outputs, again.nodes) == (net.inputs, net.outputs, net.nodes)
        assert again.to_json() == net.to_json()
        named = Network("one", {"picture": (3,)})
        named.add("dense", Dense(2))
        assert Network.from_json(named.to_json()).inputs == {"picture": (3,)}

    def test_an_output_is_no_inside_of_a_stage(self):
        net = two_by_two()
        assert ["conv", "relu"] in [[node.name for node in stage.nodes] for stage in fuse(net)]
        net.outputs = ("kind", "conv")
        assert ["conv"] in [[node.name for node in stage.nodes] for stage in fuse(net)]

    def test_sums_and_activations(self):
        """Only of two tensors of one shape."""
        net = Network("sums", {"a": (4, 4, 3), "b": (4, 4, 3), "row": (1, 4, 3)})
        for name, inputs in (("pair", "ab"), ("three", ("a", "b", "a")), ("repeated", ("a", "row"))):
            net.add(name, ops.Add(), *inputs)
            net.add(f"{name}_relu", ReLU())
        names = [[node.name for node in stage.nodes] for stage in fuse(net, sums=True)]
        assert names == [["pair", "pair_relu"], ["three"], ["three_relu"], ["repeated"], ["repeated_relu"]]
        assert all(len(stage.nodes) == 1 for stage in fuse(net))

    def test_frozen_part_with_all_inputs(self):
        net = two_by_two().freeze("conv")
        split = split_frozen(net)
        assert split is not None
        assert (split.cut, split.prefix.inputs, split.prefix.outputs) == ("both", net.inputs, ("both",))
        assert (split.suffix.inputs, split.suffix.outputs) == ({INPUT: (12,)}, ("kind", "features"))
        net.freeze("features").outputs = ("kind", "both")
        assert split_frozen(net) is None

    def test_folded(self):
        net = two_by_two()
        folded, _ = fold_batchnorm(net, net.initialize())
        assert (folded.inputs, folded.outputs) == (net.inputs, net.outputs)


def test_a_network_that_can_not_be_is_refused_before_weights_are_drawn():
    net = Network("huge", (32, 32, 3))
    for number in range(6):
        net.add(f"conv_{number}", Conv2D(65_536, 3))
    started = time.perf_counter()
    with pytest.raises(PlanError, match=r"MB.*conv_1/kernel"):
        net.initialize()
    net = Network("wide", (4,))
    net.add("dense", Dense(10**12))
    with pytest.raises(PlanError, match="dense/kernel"):
        Model(Network.from_json(net.to_json()))
    assert time.perf_counter() - started < 2


def changed(net: Network, layer: dict | None = None, **entries) -> str:
    """The network's JSON with other `entries`, and others in its first layer."""
    record = json.loads(net.to_json()) | entries
    record["layers"][0] |= layer or {}
    return json.dumps(record)


def one_layer(op) -> Network:
    net = Network("n", (8,) if isinstance(op, Dense) else (8, 8, 3))
    net.add("new", op)
    return net


def broken_inputs(*shapes, add=()) -> Network:
    net = Network("broken", *shapes)
    net.add(*add)
    return net


ADDED = [  # words of the message, layer
    ("'conv'", ("conv", ReLU())), (f"'{INPUT}'", (INPUT, ReLU())), ("'a/b'", ("a/b", ReLU())),
    ("'nowhere'", ("new", ReLU(), "conv", "nowhere")), (r"Layer 'late' \(Dense\).*1 unit", ("late", Dense(0), "conv")),
    ("'wide'", ("wide", Conv2D(3, 20), "conv")),
    *(("Layer 'new'", ("new", Conv2D(4, 3, **window), INPUT))
      for window in ({"strides": 0}, {"dilation_rate": (1, 0)}, {"padding": ((0, 0), (-1, 0))})),
]  # fmt: skip
OPS = [
    *(("Layer 'new'", op) for op in (Conv2D(0, 3), Conv2D(4, 0), Dense(0), Dense(-2))), ("2.5", Dense(2.5)),
    ("8", Conv2D("8", 3)), ("groups=1.5", Conv2D(8, 3, groups=1.5)), (r"\(3, 3, 3\)", Conv2D(8, (3, 3, 3))),
    ("3.5", Conv2D(8, 3.5)), (r"'same', 'valid' .*1", Conv2D(8, 3, padding=1)),
]  # fmt: skip
TEXTS = [
    *((None, text) for text in (
        "", "{", "null", "3", "[]", "{}", '{"name": "a", "input_shape": 3, "layers": [], "trainable": []}',
        '{"name": "a", "input_shape": [0], "layers": [], "trainable": []}',
        '{"name": "a", "input_shape": [1], "layers": ["b"], "trainable": []}',
    )),
    *((None, changed(tiny(), layer)) for layer in (
        {"op": "Dance"}, {"config": []}, {"config": {"steps": 3}}, {"inputs": ["nowhere"]}, {"name": "a/b"},
        {"name": None},
    )),
    *((None, changed(two_by_two(), outputs=outputs)) for outputs in (["nowhere"], [], 3)),
    ("nobody/kernel", changed(tiny(), trainable=["conv/kernel", "nobody/kernel"])),
]  # fmt: skip
REFUSED = [  # error, words of the message, call
    *((ShapeError, re.escape(str(shape)), partial(Network, "n", shape))
      for shape in ((), (0, 3), (-1,), (2.5,), ("a",))),
    *((ShapeError, words, partial(tiny().add, *layer)) for words, layer in ADDED),
    *((ShapeError, words, partial(one_layer, op)) for words, op in OPS),
    *((FormatError, words, partial(Network.from_json, text)) for words, text in TEXTS),
    *((PlanError, f"'{pattern}'.*conv, bn, dw, dense", partial(tiny().freeze, pattern))
      for pattern in ("conv9", "conv/gamma", "relu", "Conv")),
    *((PlanError, "'two'", partial(setattr, two_by_two(), "outputs", outputs))
      for outputs in ((), ("nowhere",), ("kind", "kind"), ("picture",))),
    (PlanError, "'n'", lambda: Network("n", (8,)).output),
    (ShapeError, None, partial(Network, "none", {})), (ShapeError, "a/b", partial(Network, "slash", {"a/b": (3,)})),
    (ShapeError, "'b'", partial(Network, "zero", {"a": (3,), "b": (0,)})),
    (ShapeError, "a, b", partial(broken_inputs, {"a": (3,), "b": (2,)}, add=("first", Dense(2)))),
    (ShapeError, "'a'", partial(broken_inputs, {"a": (3,), "b": (2,)}, add=("a", Dense(2), "b"))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words", "call"), REFUSED)
def test_what_a_network_refuses(error, words, call):
    with pytest.raises(error, match=words):
        call()
