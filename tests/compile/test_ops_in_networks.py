"""Rarer ops inside small networks: against float64, on stored integers beside simulated ones, in half precision, and
with every strategy for activation memory."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Compress, Offload, Precision, Recompute, Request
from edgelearn.graph import Network, add_split
from edgelearn.ops import (
    SGD,
    AdaptiveAveragePooling2D,
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv2D,
    Flatten,
    Float16,
    Format,
    GlobalMaxPooling2D,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    Max,
    Mean,
    Pad,
    ReLU,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Sum,
    Tanh,
    Transpose,
    UpSampling2D,
)

from .pointwise_networks import POINTWISE
from .test_networks import CLASSES, EXAMPLES, check_step, drawn
from .test_plan import batches
from .test_rematerialiser import same, steps


def rearranged() -> Network:
    """A transposed image, a mirrored frame, a shuffle of channels, and a slice in steps."""
    net = Network("rearranged", (6, 5, 3))
    net.add("stem", Conv2D(20, 1))
    net.add("relu", ReLU())
    net.add("turned", Transpose((2, 1, 3)))
    net.add("framed", Pad(((1, 0), (0, 2), (0, 0)), "reflect"))
    net.add("conv", Conv2D(24, 1))
    net.add("conv_relu", ReLU(6))
    net.add("groups", Reshape((6, 8, 4, 6)))
    net.add("shuffled", Transpose((1, 2, 4, 3)))
    net.add("image", Reshape((6, 8, 24)))
    net.add("some", Slice((3, 0, 1), (2, -1, 17), (-2, 1, 1)))
    net.add("more", Pad(((0, 0), (0, 0), (3, 4)), value=0.25))
    net.add("mix", Conv2D(9, 1))
    net.add("flat", Flatten())
    net.add("dense", Dense(CLASSES))
    net.add("softmax", Softmax())
    return net


def reduced() -> Network:
    """Halves of an image that are reduced in different ways, one of them weighed by a softmax."""
    net = Network("reduced", (6, 5, 3))
    net.add("stem", Conv2D(34, 1))
    net.add("relu", ReLU())
    one, two = add_split(net, "half", 2)
    net.add("one", Conv2D(18, 1), one)
    net.add("attention", Softmax())
    net.add("columns", Mean(2))
    net.add("sum", Sum((1, 2), keepdims=False))
    net.add("two", Conv2D(18, 1), two)
    net.add("rows", Max(1))
    net.add("columns_of_rows", Mean((1, 2), keepdims=False))
    net.add("largest", GlobalMaxPooling2D(), "two")
    net.add("channels", Mean(3), "two")
    net.add("channel", Flatten())
    net.add("both", Add(), "sum", "columns_of_rows", "largest")
    net.add("all", Concatenate(), "both", "channel")
    net.add("dense", Dense(CLASSES))
    return net


def enlarged() -> Network:
    """An image that grows: transposed convolutions with and without BatchNorm, channels multiplied, resizing."""
    net = Network("enlarged", (4, 5, 3))
    net.add("stem", Conv2D(18, 1))
    net.add("stem_relu", ReLU())
    net.add("up", Conv2DTranspose(20, 2, 2, use_bias=False))
    net.add("up_bn", BatchNormalization())
    net.add("up_relu", ReLU(6))
    net.add("up_again", Conv2DTranspose(17, 2, 2, ((1, 0), (0, 1))))
    net.add("many", DepthwiseConv2D(2, 2, depth_multiplier=2, use_bias=False))
    net.add("many_bn", BatchNormalization())
    net.add("bilinear", Resize((5, 9)))
    net.add("nearest", UpSampling2D((2, 1)))
    net.add("few", AdaptiveAveragePooling2D((3, 2)))
    net.add("flat", Flatten())
    net.add("dense", Dense(CLASSES))
    return net


def normalized() -> Network:
    """Every normalization within an example, behind and before rectifiers."""
    net = Network("normalized", (6, 5, 3))
    net.add("stem", Conv2D(36, 1))
    net.add("groups", GroupNormalization(groups=3))
    net.add("relu", ReLU())
    net.add("conv", Conv2D(20, 1))
    net.add("conv_relu", ReLU(6))
    net.add("neighbours", LocalResponseNormalization(5, 0.5))
    net.add("layer", LayerNormalization())
    net.add("shortcut", Add(), "conv_relu", "layer")
    net.add("each", GroupNormalization(groups=-1, scale=False))
    net.add("all", LayerNormalization(axis=(1, 2, 3)))
    net.add("sum", Sum((1, 2), keepdims=False))
    net.add("dense", Dense(CLASSES))
    return net


def last_axis() -> Network:
    """Dense layers on the pixels of images and on the frames of sequences, with a BatchNorm and activations fused."""
    net = Network("last axis", (4, 5, 6))
    net.add("pixels", Dense(20))
    net.add("bn", BatchNormalization())
    net.add("relu", ReLU())
    net.add("frames", Reshape((10, 40)))
    net.add("wide", Dense(18, use_bias=False))
    net.add("narrow", Dense(1))
    net.add("tanh", Tanh())
    net.add("flat", Flatten())
    net.add("dense", Dense(CLASSES))
    return net


NETWORKS = {f.__name__: f for f in (rearranged, reduced, enlarged, normalized, last_axis)} | POINTWISE
EVERY = pytest.mark.parametrize("name", NETWORKS)
STRATEGIES = {"recomputed": Recompute(), "paged": Offload()}
INTEGERS = Precision(Format(symmetric=True), Format(), Format(), simulated=False)
HALVES = Precision(Float16(), Float16(), Float16(), simulated=False)


@EVERY
def test_steps(kernels, name):
    check_step(kernels, NETWORKS[name](), 2)


def test_steps_with_batch_statistics(kernels):
    check_step(kernels, enlarged(), 2, "batch")


@pytest.mark.parametrize("frozen", ["up", "up_bn", "many", "*/kernel"])
def test_steps_with_frozen_layers(kernels, frozen):
    check_step(kernels, enlarged().freeze(frozen), 2)


def step(start, network: Network, weights, x, labels, **settings):
    """(loss, gradients) of one step."""
    session = start(Request(network, EXAMPLES, 2, SGD(), seed=5, **settings), weights)
    loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    assert finite
    return loss, session.gradients()


@pytest.mark.parametrize("precision", [INTEGERS, HALVES], ids=("integers", "halves"))
@EVERY
def test_stored_formats_agree_with_simulated_ones(start, name, precision):
    network = NETWORKS[name]()
    data = drawn(network)
    (loss, gradients), (other_loss, others) = (
        step(start, network, *data, precision=replace(precision, simulated=simulated)) for simulated in (False, True)
    )
    assert loss == pytest.approx(other_loss, rel=3e-3)
    for parameter, g in gradients.items():
        assert np.linalg.norm(g - others[parameter]) <= 0.05 * np.linalg.norm(others[parameter]) + 1e-4, parameter


@pytest.mark.parametrize("precision", [Precision(), INTEGERS], ids=("floats", "integers"))
@EVERY
def test_restored_activations_have_the_same_bits(start, name, precision):
    network = NETWORKS[name]()
    request = Request(network, EXAMPLES, 2, SGD(0.05), seed=7, precision=precision)
    expected = steps(start, request)
    for strategy in STRATEGIES.values():
        same(steps(start, replace(request, activation_memory=dict.fromkeys(network.nodes, strategy))), expected)


@EVERY
def test_compressed_activations(start, name):
    """Halves of what the backward pass reads change a gradient by little."""
    network = NETWORKS[name]()
    compared = {layer for node in network.nodes.values() if node.op.compares for layer in (node.name, *node.inputs)}
    halves = {name: Compress(Float16()) for name in network.nodes if name not in compared}
    weights, x, labels = drawn(network)
    expected, found = (step(start, network, weights, x, labels, activation_memory=m)[1] for m in ({}, halves))
    largest = max(np.linalg.norm(g) for g in expected.values())
    for parameter, g in expected.items():
        assert np.linalg.norm(found[parameter] - g) <= 0.01 * np.linalg.norm(g) + 1e-5 * largest, parameter
