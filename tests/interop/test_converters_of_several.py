"""Converters of networks with several inputs and outputs."""

import importlib

import numpy as np
import pytest

from edgelearn.graph import Network
from edgelearn.ops import Concatenate, Conv2D, Dense, GlobalAveragePooling2D, Softmax
from edgelearn.train import Model


def several() -> Network:
    net = Network("several", {"picture": (6, 5, 3), "place": (4,)})
    net.add("conv", Conv2D(8, 3), "picture")
    net.add("pool", GlobalAveragePooling2D())
    net.add("both", Concatenate(), "pool", "place")
    net.add("logits", Dense(3))
    net.add("kind", Softmax())
    net.add("unused", Dense(2), "both")
    net.outputs = ("kind", "both")
    return net


@pytest.fixture
def example():
    rng = np.random.default_rng(0)
    x = {"picture": rng.standard_normal((3, 6, 5, 3)), "place": rng.standard_normal((3, 4))}
    return {name: array.astype(np.float32) for name, array in x.items()}


@pytest.mark.parametrize("logits", [False, True])
def test_keras(example, logits):
    pytest.importorskip("keras")
    network, weights = several(), several().initialize(1)
    theirs = importlib.import_module("edgelearn.interop.to_keras").to_keras(network, weights, logits=logits)(example)
    _compare(network, weights, {name: np.asarray(y) for name, y in theirs.items()}, example, logits)


@pytest.mark.parametrize("logits", [False, True])
def test_torch(example, logits):
    torch = pytest.importorskip("torch")
    network, weights = several(), several().initialize(1)
    twin = importlib.import_module("edgelearn.interop.to_torch").TorchNetwork(network, weights, logits=logits)
    with torch.no_grad():
        theirs = twin({name: twin.encode(x) for name, x in example.items()})
    _compare(network, weights, {name: twin.decode(y) for name, y in theirs.items()}, example, logits)


def _compare(network, weights, theirs, example, logits):
    if logits:
        network.outputs = ("logits", "both")
        theirs = {"logits": theirs["kind"], "both": theirs["both"]}
    ours = Model(network, weights).predict(example)
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, atol=1e-6)
