"""Rarer ops inside small networks: against float64, on stored integers beside simulated ones, in half precision, and
with every strategy for activation memory."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.compile import Compress, Offload, Precision, Recompute, Request, make_plan
from edgelearn.compile.memory import steps_of
from edgelearn.graph import Network, add_bidirectional, add_split
from edgelearn.ops import Compute, Conv2D, Dense, ReLU, Traits
from tests.networks import add

from .pointwise_networks import POINTWISE
from .steps import first_step, same, steps
from .test_networks import CLASSES, EXAMPLES, check_step, drawn


def rearranged() -> Network:
    """A transposed image, a mirrored frame, a shuffle of channels, and a slice in steps."""
    net = Network("rearranged", (6, 5, 3))
    add(
        net, ("stem", Conv2D(20, 1)), ("relu", ReLU()), ("turned", ops.Transpose((2, 1, 3))),
        ("framed", ops.Pad(((1, 0), (0, 2), (0, 0)), "reflect")), ("conv", Conv2D(24, 1)), ("conv_relu", ReLU(6)),
        ("groups", ops.Reshape((6, 8, 4, 6))), ("shuffled", ops.Transpose((1, 2, 4, 3))),
        ("image", ops.Reshape((6, 8, 24))), ("some", ops.Slice((3, 0, 1), (2, -1, 17), (-2, 1, 1))),
        ("more", ops.Pad(((0, 0), (0, 0), (3, 4)), value=0.25)), ("mix", Conv2D(9, 1)), ("flat", ops.Flatten()),
        ("dense", Dense(CLASSES)), ("softmax", ops.Softmax()),
    )  # fmt: skip
    return net


def reduced() -> Network:
    """Halves of an image that are reduced in different ways, one of them weighed by a softmax."""
    net = Network("reduced", (6, 5, 3))
    net.add("stem", Conv2D(34, 1))
    net.add("relu", ReLU())
    one, two = add_split(net, "half", 2)
    add(
        net, ("one", Conv2D(18, 1), one), ("attention", ops.Softmax()), ("columns", ops.Mean(2)),
        ("sum", ops.Sum((1, 2), keepdims=False)), ("two", Conv2D(18, 1), two), ("rows", ops.Max(1)),
        ("columns_of_rows", ops.Mean((1, 2), keepdims=False)), ("largest", ops.GlobalMaxPooling2D(), "two"),
        ("channels", ops.Mean(3), "two"), ("channel", ops.Flatten()),
        ("both", ops.Add(), "sum", "columns_of_rows", "largest"), ("all", ops.Concatenate(), "both", "channel"),
        ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


def enlarged() -> Network:
    """An image that grows: transposed convolutions with and without BatchNorm, channels multiplied, resizing."""
    net = Network("enlarged", (4, 5, 3))
    add(
        net, ("stem", Conv2D(18, 1)), ("stem_relu", ReLU()), ("up", ops.Conv2DTranspose(20, 2, 2, use_bias=False)),
        ("up_bn", ops.BatchNormalization()), ("up_relu", ReLU(6)),
        ("up_again", ops.Conv2DTranspose(17, 2, 2, ((1, 0), (0, 1)))),
        ("many", ops.DepthwiseConv2D(2, 2, depth_multiplier=2, use_bias=False)), ("many_bn", ops.BatchNormalization()),
        ("bilinear", ops.Resize((5, 9))), ("nearest", ops.UpSampling2D((2, 1))),
        ("few", ops.AdaptiveAveragePooling2D((3, 2))), ("flat", ops.Flatten()), ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


def normalized() -> Network:
    """Every normalization within an example, behind and before rectifiers."""
    net = Network("normalized", (6, 5, 3))
    add(
        net, ("stem", Conv2D(36, 1)), ("groups", ops.GroupNormalization(groups=3)), ("relu", ReLU()),
        ("conv", Conv2D(20, 1)), ("conv_relu", ReLU(6)), ("neighbours", ops.LocalResponseNormalization(5, 0.5)),
        ("layer", ops.LayerNormalization()), ("shortcut", ops.Add(), "conv_relu", "layer"),
        ("each", ops.GroupNormalization(groups=-1, scale=False)), ("all", ops.LayerNormalization(axis=(1, 2, 3))),
        ("sum", ops.Sum((1, 2), keepdims=False)), ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


def last_axis() -> Network:
    """Dense layers on the pixels of images and on the frames of sequences, with a BatchNorm and activations fused."""
    net = Network("last axis", (4, 5, 6))
    add(
        net, ("pixels", Dense(20)), ("bn", ops.BatchNormalization()), ("relu", ReLU()),
        ("frames", ops.Reshape((10, 40))), ("wide", Dense(18, use_bias=False)), ("narrow", Dense(1)),
        ("tanh", ops.Tanh()), ("flat", ops.Flatten()), ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


def over_steps() -> Network:
    """Convolutions and pooling over the steps of a sequence, with a BatchNorm and activations fused."""
    net = Network("over steps", (12, 3))
    add(
        net, ("causal", ops.Conv1D(18, 3, padding="causal", use_bias=False)), ("bn", ops.BatchNormalization()),
        ("relu", ReLU()), ("each", ops.DepthwiseConv1D(3, padding="same")), ("each_relu", ReLU(6)),
        ("max", ops.MaxPooling1D(3, 2, "same")), ("wide", ops.Conv1DTranspose(20, 2, 2)),
        ("root", ops.RMSNormalization()), ("mean", ops.GlobalAveragePooling1D()), ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


def recurrent() -> Network:
    """An LSTM in both directions between a convolution and a masked GRU."""
    net = Network("recurrent", (9, 3))
    net.add("stem", ops.Conv1D(18, 3, padding="causal"))
    net.add("relu", ReLU())
    add_bidirectional(net, "both", ops.LSTM(17, return_sequences=True))
    net.add("more", Dense(5))
    net.add("above", ops.Mean(2, keepdims=False), "stem")
    net.add("mask", ops.Greater(), "above", net.add("limit", ops.Constant((9,)), "above"))
    net.add("gru", ops.GRU(20), "more", "mask")
    net.add("dense", Dense(CLASSES))
    return net.freeze("limit")


def decoder() -> Network:
    """Causal attention of two heads with rotary positions, added to what it reads; logits by the embedding's table."""
    net = Network("decoder", (9, 3))
    net.add("stem", Dense(32))
    net.add("norm", ops.RMSNormalization())
    add(
        net, ("query", Dense(32), "norm"), ("key", Dense(16), "norm"), ("value", Dense(16), "norm"),
        ("turned", ops.RotaryEmbedding(2), "query"), ("turned_key", ops.RotaryEmbedding(1), "key"),
        ("attention", ops.Attention(2, 1, causal=True), "turned", "turned_key", "value"), ("mixed", Dense(32)),
        ("sum", ops.Add(), "mixed", "stem"), ("places", ops.Bias((9, 32))), ("rows", ops.ReverseEmbedding(7)),
        ("flat", ops.Flatten()), ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


def projected() -> Network:
    """Queries, keys and values are parts of one dense layer's output: of whole blocks, which are views of it, and,
    behind an activation and of other sizes, copies."""
    net = Network("projected", (9, 3))
    net.add("stem", Dense(32))
    for number, size in ((1, 16), (2, 16), (3, 10)):
        x = net.output.name
        projected = net.add(f"projected{number}", Dense(4 * size))
        if number == 2:
            projected = net.add("relu", ReLU())
        parts = [
            net.add(f"{name}{number}", ops.SliceChannels(first * size, heads * size), projected)
            for name, first, heads in (("query", 0, 2), ("key", 2, 1), ("value", 3, 1))
        ]
        net.add(f"attention{number}", ops.Attention(2, 1, causal=True), *parts)
        net.add(f"mixed{number}", Dense(32))
        net.add(f"sum{number}", ops.Add(), f"mixed{number}", x)
    add(net, ("flat", ops.Flatten()), ("dense", Dense(CLASSES)))
    return net


def gated() -> Network:
    """Dense layers whose kernels apply the activation after them, of many rows and of few, and multiply by derivatives
    of those before; a sum of two branches reads another."""
    net = Network("gated", (9, 3))
    add(
        net, ("wide", Dense(40)), ("gelu", ops.GELU()), ("narrow", Dense(20, use_bias=False)), ("silu", ops.SiLU()),
        ("gate", Dense(20)), ("mish", ops.Mish()), ("product", ops.Multiply(), "mish", "silu"),
        ("flat", ops.Flatten()), ("few", Dense(33)), ("tanh", ops.GELU(True)), ("dense", Dense(CLASSES)),
    )  # fmt: skip
    return net


FUNCTIONS = (decoder, projected, gated, rearranged, reduced, enlarged, normalized, last_axis, over_steps, recurrent)
NETWORKS = {f.__name__: f for f in FUNCTIONS} | POINTWISE
EVERY = pytest.mark.parametrize("name", NETWORKS)
STRATEGIES = {"recomputed": Recompute(), "paged": Offload()}
INTEGERS = Precision(ops.Format(symmetric=True), ops.Format(), ops.Format(), simulated=False)
HALVES = Precision(ops.Float16(), ops.Float16(), ops.Float16(), simulated=False)


@EVERY
def test_steps(kernels, name):
    # "each" subtracts means from "layer", whose gradients are sums that nearly cancel: with half of all seeds float32
    # comes close to the tolerance.
    check_step(kernels, NETWORKS[name](), 2, seed=2 if name == "normalized" else 0)


def test_parts_of_whole_blocks_are_not_copied(kernels):
    plan = make_plan(Request(projected(), EXAMPLES, 2, ops.SGD()), kernels.context.device)
    copied = {launch.layer for launch in plan.step_launches if launch.kernel == "move_channels"}
    assert copied == {f"{name}{number}" for name in ("query", "key", "value") for number in (2, 3)}


def test_kernels_of_dense_layers_apply_the_activation_behind(kernels):
    launches = make_plan(Request(gated(), EXAMPLES, 2, ops.SGD()), kernels.context.device).step_launches
    names = {(launch.layer, launch.kernel) for launch in launches if launch.source == "activation.cl"}
    assert names == {("mish", "activation_backward"), ("silu", "activation_backward")}  # others read these, too


def test_parts_as_on_a_gpu(kernels):
    check_step(kernels, projected(), 2, traits=Traits(gpu=True, compute_units=8))


@pytest.mark.parametrize("frozen", ["wide", "few", "*/kernel"])
def test_activations_behind_frozen_dense_layers(kernels, frozen):
    check_step(kernels, gated().freeze(frozen), 2)


def test_steps_with_batch_statistics(kernels):
    check_step(kernels, enlarged(), 2, "batch")


@pytest.mark.parametrize("frozen", ["up", "up_bn", "many", "*/kernel"])
def test_steps_with_frozen_layers(kernels, frozen):
    check_step(kernels, enlarged().freeze(frozen), 2)


def step(start, network: Network, data, **settings):
    return first_step(start, Request(network, EXAMPLES, 2, ops.SGD(), seed=5, **settings), data)


@pytest.mark.parametrize("precision", [INTEGERS, HALVES], ids=("integers", "halves"))
@EVERY
def test_stored_formats_agree_with_simulated_ones(start, name, precision):
    network = NETWORKS[name]()
    data = drawn(network)
    (loss, gradients), (other_loss, others) = (
        step(start, network, data, precision=replace(precision, simulated=simulated)) for simulated in (False, True)
    )
    assert loss == pytest.approx(other_loss, rel=3e-3)
    for parameter, g in gradients.items():
        assert np.linalg.norm(g - others[parameter]) <= 0.05 * np.linalg.norm(others[parameter]) + 1e-4, parameter


@pytest.mark.parametrize("make", (over_steps, recurrent, decoder, projected))
def test_sequences_in_halves_agree_with_floats(start, make):
    network = make()
    data = drawn(network)
    expected, found = (step(start, network, data, compute=Compute(kind, plain=True))[1] for kind in ("fp32", "bf16"))
    for parameter, g in expected.items():
        assert np.linalg.norm(found[parameter] - g) <= 0.15 * np.linalg.norm(g) + 1e-4, parameter


@pytest.mark.parametrize("settings", [{"compute": Compute("bf16", plain=True)}, {"precision": INTEGERS}], ids=repr)
def test_numbers_of_rows_are_not_rounded(start, settings):
    """As they come, and through a layer that moves them: the gradient is in the rows that they name."""
    network = Network("words", (6,))
    network.add("some", ops.SliceChannels(1, 5))
    add(network, ("table", ops.Embedding(3000, 4)), ("flat", ops.Flatten()), ("dense", Dense(CLASSES)))
    weights, x, labels = drawn(network)
    x = np.random.default_rng(0).integers(0, 3000, x.shape).astype(np.float32)
    _, gradients = step(start, network, (weights, x, labels), **settings)
    assert np.array_equal(np.flatnonzero(gradients["table/embeddings"].any(1)), np.unique(x[:, 1:]))


@pytest.mark.parametrize("precision", [Precision(), INTEGERS], ids=("floats", "integers"))
@EVERY
def test_restored_activations_have_the_same_bits(start, name, precision):
    network = NETWORKS[name]()
    request = Request(network, EXAMPLES, 2, ops.SGD(0.05), seed=7, precision=precision)
    expected = steps(start, request)
    for strategy in STRATEGIES.values():
        memory = dict.fromkeys((*network.nodes, *steps_of(network)), strategy)
        same(steps(start, replace(request, activation_memory=memory)), expected)


@EVERY
def test_compressed_activations(start, name):
    """Halves of what the backward pass reads change a gradient by little."""
    network = NETWORKS[name]()
    compared = {layer for node in network.nodes.values() if node.op.compares for layer in (node.name, *node.inputs)}
    halves = {name: Compress(ops.Float16()) for name in network.nodes if name not in compared}
    expected, found = (step(start, network, drawn(network), activation_memory=m)[1] for m in ({}, halves))
    largest = max(np.linalg.norm(g) for g in expected.values())
    for parameter, g in expected.items():
        assert np.linalg.norm(found[parameter] - g) <= 0.01 * np.linalg.norm(g) + 1e-5 * largest, parameter


def test_gates_are_computed_once_unless_the_plan_recomputes_them(kernels):
    network = Network("steps", (16, 3))
    add(network, ("lstm", ops.LSTM(20)), ("dense", Dense(CLASSES)))
    request = Request(network, EXAMPLES, EXAMPLES, ops.SGD())
    one = {"lstm/gates 5 to 8": Recompute()}
    for memory, forward in (({}, 4), (one, 5), (dict.fromkeys(steps_of(network), Recompute()), 8)):
        launches = make_plan(replace(request, activation_memory=memory), kernels.context.device).step_launches
        names = [launch.kernel for launch in launches]
        assert (names.count("cell_sums"), names.count("cell_forward")) == (forward, forward)
        assert names.count("cell_backward") == 4
