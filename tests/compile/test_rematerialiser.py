"""Activations that aren't kept: steps have the bits of steps that keep everything, whatever comes back how."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Kind, Precision, Recompute, Request, make_plan
from edgelearn.compile.policies import POLICIES, checkpoints, invertible, nested, square_root
from edgelearn.graph import Network, reversible
from edgelearn.models import mobilenet_v2, mobilenet_v2_reversible
from edgelearn.ops import SGD, Add, BatchNormalization, Conv2D, Dropout, Format, ReLU, Traits, pack
from edgelearn.ops.observers import CurrentMinMax, InHindsightMinMax

from .steps import batches, first_step, same, same_bits, shrink, steps
from .test_networks import CLASSES, EXAMPLES, NETWORKS, convolutions, drawn, head, separable


def everything(network: Network) -> dict:
    return {name: Recompute() for name in network.nodes}


def preactivated() -> Network:
    """Rows of four residual blocks of 20 channels and of three of 33, with Dropout inside."""
    net = Network("preactivated", (6, 7, 3))
    for row, (channels, blocks) in enumerate(((20, 4), (33, 3))):
        x = net.add(f"stem{row}", Conv2D(channels, 3, strides=1 + row, padding="same", use_bias=False))
        for block in range(blocks):
            name = f"row{row}_{block}"
            net.add(f"{name}_bn1", BatchNormalization(), x)
            net.add(f"{name}_relu", ReLU())
            net.add(f"{name}_conv1", Conv2D(channels, 3, padding="same", use_bias=False))
            net.add(f"{name}_dropout", Dropout(0.3))
            net.add(f"{name}_bn2", BatchNormalization())
            f = net.add(f"{name}_conv2", Conv2D(channels, 1, use_bias=False))
            x = net.add(f"{name}_add", Add(), x, f)
    return head(net)


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("name", NETWORKS)
def test_recomputed_steps_have_the_same_bits(start, kernels, name, batchnorm):
    """Moving statistics among them, which move once; and Dropout in two of the networks."""
    network = NETWORKS[name]()
    request = Request(network, EXAMPLES, 2, SGD(0.05), batchnorm, seed=7)
    expected = steps(start, request)
    fewest = len(make_plan(request, kernels.context.device).program(Kind.TRAIN, 2).micro)
    for policy in (checkpoints, square_root, nested, everything) if batchnorm == "batch" else (checkpoints, everything):
        activation_memory = policy(network)
        same(steps(start, replace(request, activation_memory=activation_memory)), expected)
        launches = (
            make_plan(replace(request, activation_memory=activation_memory), kernels.context.device)
            .program(Kind.TRAIN, 2)
            .micro
        )
        assert len(launches) > fewest, "nothing was recomputed"


@pytest.mark.parametrize("frozen", (("stem*", "a*"), ("*/kernel",), ("*_bn", "projection")))
@pytest.mark.parametrize("policy", (nested, everything))
def test_frozen_layers(start, policy, frozen):
    network = NETWORKS["residual"]().freeze(*frozen)
    request = Request(network, EXAMPLES, 2, SGD(0.05), "batch")
    same(steps(start, replace(request, activation_memory=policy(network))), steps(start, request))


PRECISIONS = {
    "static": Precision(Format(4, True), Format(4), Format(4, rounding="stochastic"), InHindsightMinMax(0.5)),
    "at random": Precision(activations=Format(4, rounding="stochastic"), observer=CurrentMinMax(), traced=True),
    "integers": Precision(
        Format(symmetric=True), Format(rounding="stochastic"), Format(rounding="stochastic"), InHindsightMinMax(0.5),
        simulated=False,
    ),
    "integers, current": Precision(
        Format(symmetric=True), Format(rounding="stochastic"), Format(), CurrentMinMax(), simulated=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_rounding_replays_and_ranges_learn_once(start, kernels, name, batchnorm):
    network = separable()
    request = Request(network, EXAMPLES, 2, SGD(0.05), batchnorm, seed=7, precision=PRECISIONS[name])
    expected = steps(start, request)
    same(steps(start, replace(request, activation_memory=everything(network))), expected)


@pytest.mark.parametrize("name", ("checkpoints", "nested", "invertible"))
@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_streams_come_back_to_the_bit(start, name, batchnorm):
    """Dropout within blocks; rows of an even and of an odd number of them."""
    network = reversible(preactivated())
    request = Request(network, EXAMPLES, 2, SGD(0.05), batchnorm, seed=7)
    same(steps(start, replace(request, activation_memory=POLICIES[name](network)), 0.3), steps(start, request, 0.3))


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_streams_of_floats_come_back_nearly(start, batchnorm):
    network = reversible(preactivated(), step=0)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, seed=7)
    expected, found = (steps(start, replace(request, activation_memory=s), 0.3) for s in ({}, invertible(network)))
    largest = max(np.abs(g).max() for g in expected[1].values())
    for name, g in found[1].items():
        assert np.abs(g - expected[1][name]).max() <= 1e-4 * max(np.abs(g).max(), 3e-2 * largest), name
    assert any((g != expected[1][name]).any() for name, g in found[1].items())


def test_looking_at_a_step_leaves_ranges(start):
    network = reversible(preactivated())
    streams = {name: None for name in network.nodes if "_add" in name or "_stream" in name}
    precision = Precision(None, Format(8), Format(8), InHindsightMinMax(0.5), exceptions=streams)
    request = Request(
        network, EXAMPLES, EXAMPLES, SGD(0.0), "batch", precision=precision, activation_memory=invertible(network)
    )
    weights, x, labels = drawn(network)
    session = start(request, weights)
    for step in (1, 2):
        session.train(batches(session, (1 + step) * x, labels), EXAMPLES, 0.0, step)
    before = session.records()
    assert session.reconstruction_errors(2)
    assert session.first_nonfinite(batches(session, np.full_like(x, np.nan), labels), EXAMPLES, 0.0, 3)
    same_bits(session.records(), before)


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_as_on_a_gpu(start, batchnorm):
    network = reversible(preactivated())
    weights, x, labels = drawn(network)
    found = []
    for activation_memory in ({}, invertible(network), everything(network)):
        request = Request(network, EXAMPLES, EXAMPLES, SGD(0.0), batchnorm, seed=7, activation_memory=activation_memory)
        data, gpu = (shrink(weights, 0.3), x, labels), Traits(gpu=True, compute_units=8)
        found.append(first_step(start, request, data, gpu)[1])
    for gradients in found[1:]:
        same_bits(gradients, found[0])


def test_transformed_kernels_are_made_again(start):
    """Gradients of convolutions by Winograd's tiles have the same bits as if everything were stored."""
    network = convolutions(Network("wide", (36, 36, 3)), "abc", 32, bn=BatchNormalization(), relu=ReLU())
    found = []
    weights, x, labels = drawn(head(network))
    for activation_memory in ({}, everything(network)):
        request = Request(network, EXAMPLES, 2, SGD(0.0), "batch", activation_memory=activation_memory)
        session = start(request, weights, Traits(compute_units=2, vector_width=16))
        used = [launch.kernel for launch in session.plan.program(Kind.TRAIN).micro]
        assert {"winograd_kernel", "winograd_backward_data", "winograd_backward_weights"} <= set(used)
        assert session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)[2]
        assert session.allocated_bytes == session.plan.peak_bytes
        found.append((used.count("winograd_forward"), session.gradients()))
    (stored, expected), (recomputed, gradients) = found
    assert recomputed > stored
    same_bits(gradients, expected)


@pytest.mark.parametrize(
    ("make", "policy", "n"), ((mobilenet_v2_reversible, invertible, 3), (mobilenet_v2, checkpoints, 1))
)
@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_gradients_of_mobilenet_v2(start, make, policy, n, batchnorm):
    network, rng = make((64, 64, 3), alpha=0.35, classes=CLASSES), np.random.default_rng(0)
    x, labels = rng.standard_normal((n, 64, 64, 3)).astype(np.float32), rng.integers(0, CLASSES, n).astype(np.int32)
    weights, found = network.initialize(1), []
    for activation_memory in ({}, policy(network)):
        session = start(Request(network, n, n, SGD(0.1), batchnorm, activation_memory=activation_memory), weights)
        session.train([(pack(x, 3), labels)], n, 0.0, 1)
        found.append(session.gradients())
        errors = session.reconstruction_errors(1)
        session.close()
    expected, gradients = found
    same_bits(gradients, expected)
    assert set(errors.values()) == ({0.0} if policy is invertible else set())
