"""Strategies that keep something smaller than a tensor: masks, halves, integers."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Budget, Compress, Kind, Mask, Precision, Recompute, Request, account, make_plan
from edgelearn.compile.plan import explain, stored
from edgelearn.compile.policies import compressed, halves, invertible
from edgelearn.errors import PlanError
from edgelearn.graph import Network, reversible
from edgelearn.ops import SGD, Add, Conv2D, Float16, Format, MaxPooling2D, ReLU, Traits

from .steps import first_step, same, steps
from .test_networks import EXAMPLES, NETWORKS, head
from .test_rematerialiser import preactivated

UNBIASED = Format(8, rounding="stochastic")


def added(max_value: int | None = None) -> Network:
    """ReLUs before additions and before an average: fused with convolutions, and one with a sum."""
    net = Network("added", (6, 7, 3))
    net.add("stem", Conv2D(20, 3, padding="same"))
    for name in "ab":
        net.add(f"{name}_conv", Conv2D(33, 3, padding="same"), "stem")
        net.add(f"{name}_relu", ReLU(max_value))
    net.add("sum", Add(), "a_relu", "b_relu")
    net.add("relu", ReLU(max_value))
    return head(net)


MASKS = dict.fromkeys(("a_conv", "a_relu", "b_conv", "b_relu", "sum", "relu"), Mask())


@pytest.mark.parametrize("max_value", (None, 6))
def test_masks_are_exact(start, kernels, max_value):
    network = added(max_value)
    request = Request(network, EXAMPLES, 2, SGD(0.05))
    masked = replace(request, activation_memory=MASKS)
    same(steps(start, masked), steps(start, request))
    floats, bits = (account(make_plan(r, kernels.context.device)).stored for r in (request, masked))
    values = 2 * 42 * 48
    assert floats - bits == 3 * (4 * values - 32 * -(-values // 256))


def test_masks_where_kernels_are_frozen(start, kernels):
    """Training biases alone (Cai et al. 2020, "TinyTL", arXiv 2007.11622): no activation's values are needed."""
    network = NETWORKS["inception"]().freeze("*/kernel")
    activation_memory = {
        name: Mask() for name in network.nodes if name.startswith(("one", "three", "projection", "mix"))
    }
    request = Request(network, EXAMPLES, 2, SGD(0.05))
    masked = replace(request, activation_memory=activation_memory)
    same(steps(start, masked), steps(start, request))
    few, many = (account(make_plan(r, kernels.context.device)).stored for r in (masked, request))
    assert many - few > 0.96 * 4 * 84 * (32 + 32 + 16 + 32)


def test_masks_that_would_not_do(kernels):
    for activation_memory, message in (
        ({"stem": Mask()}, "'stem'"),
        (MASKS | {"sum": Recompute(), "relu": Recompute()}, "'a_conv'.*add of 'sum'"),
    ):
        with pytest.raises(PlanError, match=message):
            make_plan(Request(added(), 1, 1, SGD(0.1), activation_memory=activation_memory), kernels.context.device)


@pytest.mark.parametrize("kept_in", (Float16(), Format(8), UNBIASED))
def test_only_the_layer_that_reads_it_sees_the_difference(start, kept_in):
    """x comes back nearly as it was: its next layer's kernel has another gradient, and nothing else has."""
    net = Network("two", (6, 7, 3))
    net.add("x", Conv2D(33, 3, padding="same"))
    net.add("y", Conv2D(20, 3, padding="same"))
    head(net)
    request = Request(net, EXAMPLES, 2, SGD(0.1))
    (loss, expected), (replay, gradients) = (
        first_step(start, replace(request, activation_memory=s)) for s in ({}, {"x": Compress(kept_in)})
    )
    assert replay == loss
    for name, g in gradients.items():
        off = np.abs(g - expected[name]).max() / np.abs(g).max()
        assert 1e-6 < off < (5e-4 if isinstance(kept_in, Float16) else 1e-2) if name == "y/kernel" else off == 0, name


@pytest.mark.parametrize("policy", (compressed, halves))
@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("name", NETWORKS)
def test_compressed_steps(start, kernels, name, batchnorm, policy):
    network = NETWORKS[name]()
    request = Request(network, EXAMPLES, EXAMPLES, SGD(0.1), batchnorm, seed=7)
    requests = [replace(request, activation_memory=activation_memory) for activation_memory in ({}, policy(network))]
    (loss, expected), (replay, gradients) = (first_step(start, r) for r in requests)
    assert replay == loss
    found, whole = (np.concatenate([g[name].ravel() for name in expected]) for g in (gradients, expected))
    assert 0 < np.linalg.norm(found - whole) < (0.02 if policy is halves else 0.4) * np.linalg.norm(whole)
    whole, part = (account(make_plan(r, kernels.context.device)).stored for r in requests)
    assert part < (0.6 if policy is halves else 0.45) * whole


def test_both_sides_of_a_batchnorm_have_ranges_of_their_own(start):
    request = Request(NETWORKS["residual"](), EXAMPLES, EXAMPLES, SGD(0.1), "batch", seed=7)
    both = replace(request, activation_memory=dict.fromkeys(("a1", "a1_bn", "a1_relu"), Compress(Format(8))))
    (_, expected), (_, gradients) = (first_step(start, r) for r in (request, both))
    found, whole = (np.concatenate([g[name].ravel() for name in expected]) for g in (gradients, expected))
    assert 0 < np.linalg.norm(found - whole) < 0.1 * np.linalg.norm(whole)


@pytest.mark.parametrize("activation_memory", (MASKS, compressed(added(), UNBIASED), halves(added())))
def test_as_on_a_gpu(start, activation_memory):
    """The same as on this device, to rounding."""
    request = Request(added(), EXAMPLES, EXAMPLES, SGD(0.0), seed=7, activation_memory=activation_memory)
    (_, expected), (_, found) = (first_step(start, request, None, t) for t in (None, Traits(gpu=True, compute_units=8)))
    for name, g in expected.items():
        assert np.abs(g - found[name]).max() <= 1e-3 * np.abs(g).max(), name


def test_explained(kernels):
    plan = make_plan(Request(added(), 2, 2, SGD(0.1), activation_memory=MASKS), kernels.context.device)
    found = explain(plan)
    ways = {(layer, way) for layer, _, way, _ in found.activations}
    assert {("sum", "compressed"), ("sum", "restored"), ("stem", "stored")} <= ways
    kept = sum(nbytes for _, _, way, nbytes in found.activations if way in ("stored", "compressed"))
    assert kept == found.accounting.stored == sum(b.nbytes for b in stored(plan.program(Kind.TRAIN)))
    assert sum(share.nbytes for share in found.shares) == plan.peak_bytes
    assert "mask 6" in str(plan)


def test_what_is_compared_comes_back_with_what_it_is_compared_with(kernels):
    net = Network("pooled", (8, 8, 3))
    net.add("conv", Conv2D(20, 3, padding="same"))
    net.add("max", MaxPooling2D())
    net.add("next", Conv2D(20, 1))
    head(net)
    for names in (("conv",), ("max",)):
        with pytest.raises(PlanError, match=r"'max' .MaxPooling2D"):
            make_plan(
                Request(net, 1, 1, SGD(0.1), activation_memory=dict.fromkeys(names, Compress())), kernels.context.device
            )
    make_plan(
        Request(net, 1, 1, SGD(0.1), activation_memory={"conv": Compress(), "max": Recompute()}), kernels.context.device
    )


def test_streams_are_not_made_of_approximations(kernels):
    network = reversible(preactivated())
    request = Request(
        network, 1, 1, SGD(0.1), "batch", activation_memory=invertible(network) | {"row0_2_conv1": Compress()}
    )
    with pytest.raises(PlanError, match="invert by row0_1_add"):
        make_plan(request, kernels.context.device)
    request = replace(request, activation_memory={})
    half = account(make_plan(request, kernels.context.device)).stored // 2
    plan = make_plan(request, kernels.context.device, Budget(half, "stored"), allow=(Compress(),))
    assert account(plan).stored <= half  # by ways that pass the same check


def test_formats_that_nothing_is_kept_in(kernels):
    for kept_in in (Format(9), Format(per_channel=True)):
        with pytest.raises(PlanError, match="8 bits"):
            Compress(kept_in)
    precision = Precision(activations=Float16(), norm_inputs=Float16(), simulated=False)
    request = Request(added(), 1, 1, SGD(0.1), precision=precision, activation_memory=compressed(added()))
    with pytest.raises(PlanError, match=r"'stem'.*float16"):
        make_plan(request, kernels.context.device)
