"""Models whose activations leave the device or are kept in fewer bits."""

import numpy as np
import pytest

from edgelearn.compile import Compress, Offload, Recompute, account
from edgelearn.compile.policies import compressed, keep_all, paged
from edgelearn.errors import PagingError, PlanError
from edgelearn.graph import Network
from edgelearn.ops import SGD, BatchNormalization, Conv2D, Dense, Float16, GlobalAveragePooling2D, ReLU
from edgelearn.train import Model


def network() -> Network:
    net = Network("three", (8, 8, 3))
    for layer in range(3):
        net.add(f"conv{layer}", Conv2D(20, 3, padding="same", use_bias=False))
        net.add(f"norm{layer}", BatchNormalization())
        net.add(f"relu{layer}", ReLU(6))
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    return net


def trained(activation_memory=keep_all, budget=None, allow=()) -> Model:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 8, 8, 3)).astype(np.float32), rng.integers(0, 4, 10)
    model = Model(network(), seed=1).compile(
        SGD(0.05), batchnorm="batch", activation_memory=activation_memory, allow=allow
    )
    model.fit(x, y, 4, 2, micro_batch=2, budget=budget)
    return model


def same(some: Model, other: Model) -> bool:
    return all(np.array_equal(w, other.weights[name]) for name, w in some.weights.items())


def test_pages_change_no_bit(tmp_path):
    expected = trained()
    assert same(trained(paged), expected)
    assert same(trained(lambda net: paged(net, str(tmp_path)), None), expected)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PagingError, match="none"):
        trained(lambda net: paged(net, str(tmp_path / "none")))


def test_what_is_no_way_of_saving():
    with pytest.raises(PlanError, match="activation_memory"):
        Model(network()).compile(SGD(0.05), activation_memory={"conv0": Recompute()})
    assert trained(lambda net: {"conv1": Recompute()}).plan(4, 2).request.activation_memory == {"conv1": Recompute()}


def test_fewer_bits_change_some():
    assert not same(trained(lambda net: compressed(net, Float16())), trained())


def test_within_a_budget_lossy_ways_are_asked_for():
    expected, budget = trained(), "30 kB stored"
    assert same(trained(budget=budget), expected)
    assert same(trained(budget=budget, allow=[Offload()]), expected)
    plan = expected.compile(SGD(0.05), batchnorm="batch", allow=[Compress()]).plan(4, 2, budget)
    assert account(plan).stored <= 30_000
