"""Branches beside frozen layers: sparse updates of channels, and low-rank adapters."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.compile import account
from edgelearn.compile.policies import checkpoints, masks
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.graph.rewrites import Branches
from edgelearn.launch import Role
from edgelearn.ops import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, ReLU

CHANNELS = Branches({"conv2": 16, "dense": 5}, {})
ADAPTERS = Branches({}, {"conv2": 3, "dense": 2})
EXAMPLES = 6


def small() -> Network:
    network = Network("small", (9, 7, 3))
    network.add("conv1", Conv2D(40, 3, padding="same", use_bias=False))
    network.add("conv1_bn", BatchNormalization())
    network.add("relu1", ReLU())
    network.add("depthwise", DepthwiseConv2D(3, padding="same"))
    network.add("relu2", ReLU(6))
    network.add("conv2", Conv2D(24, 3, strides=2, padding="same"))
    network.add("conv2_bn", BatchNormalization())
    network.add("relu3", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(4))
    return network


@pytest.fixture(scope="module")
def trained():
    """(network, weights as training leaves them, examples, class numbers)"""
    network, rng = small(), np.random.default_rng(3)
    weights = network.initialize(1)
    for name, array in weights.items():
        low = 0.5 if name.endswith(("gamma", "variance")) else -0.3
        if not name.endswith("kernel"):
            weights[name] = rng.uniform(low, low + 1, array.shape).astype(np.float32)
    x = rng.normal(size=(EXAMPLES, 9, 7, 3)).astype(np.float32)
    return network, weights, x, np.arange(EXAMPLES) % 4


def model_of(trained, branches: Branches, policy=None, **settings) -> el.Model:
    network, weights, *_ = trained
    model = el.Model(branches.network(network.copy().freeze()), branches.weights(network, weights))
    return model.compile(el.SGD(0.05, momentum=0.9), batchnorm="moving", activation_memory=policy, **settings)


@pytest.mark.parametrize("branches", [CHANNELS, ADAPTERS], ids=("channels", "adapters"))
def test_a_branch_begins_as_its_layer_and_is_merged_back(trained, branches):
    network, weights, x, y = trained
    model = model_of(trained, branches)
    before = el.Model(network, weights).predict(x)
    np.testing.assert_allclose(model.predict(x), before, atol=1e-6)
    model.fit(x, y, EXAMPLES, 4, verbose=0)
    merged = branches.merged(network, model.weights)
    after = el.Model(network, merged).predict(x)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(model.predict(x), after, atol=1e-6)
    assert {n for n in merged if not np.array_equal(merged[n], weights[n])} == {"conv2/kernel", "dense/kernel"}


def test_a_branch_of_channels_has_the_gradient_of_these_channels(trained):
    network, weights, x, y = trained
    whole = el.Model(network.copy().freeze().unfreeze("conv2/kernel", "dense/kernel"), weights)
    expected = whole.compile(el.SGD(0.05), batchnorm="moving").gradients(x, y)
    found = model_of(trained, CHANNELS).gradients(x, y)
    assert found.keys() == {"conv2_update/kernel", "dense_update/kernel"}
    for name, count in CHANNELS.channels.items():
        np.testing.assert_allclose(
            found[f"{name}_update/kernel"], expected[f"{name}/kernel"][..., :count, :], rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("policy", [masks, checkpoints], ids=("masks", "checkpoints"))
@pytest.mark.parametrize("branches", [CHANNELS, ADAPTERS], ids=("channels", "adapters"))
def test_every_plan_gives_the_same_bits(trained, branches, policy):
    *_, x, y = trained
    stored, other = model_of(trained, branches), model_of(trained, branches, policy)
    expected, found = stored.gradients(x, y), other.gradients(x, y)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    if policy is masks:
        assert account(other.plan(EXAMPLES)).stored < account(stored.plan(EXAMPLES)).stored


def test_a_plan_holds_the_trained_channels_alone(trained):
    """Of 40 input channels, 48 as blocks, 16 are stored: a third, and gradient and momentum have that size, too."""
    network, weights, *_ = trained
    part = Branches({"conv2": 16}, {})
    sparse = model_of(trained, part, masks).plan(EXAMPLES)
    whole = el.Model(network.copy().freeze().unfreeze("conv2/kernel"), weights)
    full = whole.compile(el.SGD(0.05, momentum=0.9), batchnorm="moving", activation_memory=masks).plan(EXAMPLES)
    for role in (Role.GRADIENT, Role.OPTIMIZER):
        assert sparse.bytes_by_role[role] == full.bytes_by_role[role] * 16 // 40
    stored, pixels = account(full).stored, EXAMPLES * 9 * 7
    assert account(sparse).stored < stored - 4 * pixels * (48 - 16) + pixels * 48 // 4


def test_biases_alone_store_bits(trained):
    """The pooled features, which the classifier reads, and one bit for each value of the activations."""
    network, weights, x, y = trained
    biases = el.Model(network.copy().freeze().unfreeze("*/beta", "*/bias", "dense"), weights)
    biases.compile(el.SGD(0.05), batchnorm="moving", activation_memory=masks)
    floats = 4 * EXAMPLES * (9 * 7 * 48 * 2 + 5 * 4 * 32)
    assert account(biases.plan(EXAMPLES)).stored < floats / 16
    kept = el.Model(biases.network, weights).compile(el.SGD(0.05), batchnorm="moving").gradients(x, y)
    found = biases.gradients(x, y)
    assert all(np.array_equal(kept[name], found[name]) for name in kept)


@pytest.mark.parametrize(
    ("branches", "problem"),
    [
        (Branches({"depthwise": 8}, {}), "takes no branch. Layers that do: conv1, conv2, dense"),
        (Branches({"conv2": 40}, {}), "1 to 39 make a branch, not 40"),
        (Branches({}, {"conv2": 0}), "at least 1, not 0"),
        (Branches({"conv2": 16}, {"conv2": 2}), "leave one of them out"),
    ],
)
def test_branches_that_are_refused(branches, problem):
    with pytest.raises(PlanError, match=problem):
        branches.network(small())
