"""Losses in a network, with weights of examples and classes, against Keras: one update, and what `evaluate` returns."""

import numpy as np
import pytest

from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, ReLU, Sigmoid, Softmax
from edgelearn.ops.losses import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
    SoftmaxCrossEntropy,
)
from edgelearn.train import Model

N, FEATURES, OUTPUTS, RATE = 11, 6, 4, 0.1
HEADS = {"softmax": Softmax, "sigmoid": Sigmoid}


def network(head: str | None, outputs: int = OUTPUTS) -> Network:
    net = Network("net", (FEATURES,))
    net.add("hidden", Dense(9))
    net.add("relu", ReLU())
    net.add("out", Dense(outputs))
    if head:
        net.add("head", HEADS[head]())
    return net


@pytest.fixture(scope="module")
def keras():
    """Imported by the process that runs these tests, not by all that collect them: it takes 5 seconds."""
    return pytest.importorskip("keras")


def twin(keras, model: Model, head: str | None, loss):
    """The same network and training in Keras."""
    layers, weights = keras.layers, model.weights
    outputs = model.network.output.shape[-1]
    net = keras.Sequential(
        [layers.Input((FEATURES,)), layers.Dense(9, "relu"), layers.Dense(outputs, head)]
    )  # fmt: skip
    net.set_weights([weights[f"{layer}/{role}"] for layer in ("hidden", "out") for role in ("kernel", "bias")])
    net.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return net


LABELS, ONE_HOT, SEVERAL, VALUES = "labels", "one-hot", "several", "values"
CASES = {
    "sparse": (SoftmaxCrossEntropy(), "softmax", LABELS, lambda k: k.SparseCategoricalCrossentropy()),
    "categorical": (
        CategoricalCrossentropy(0.1), "softmax", ONE_HOT, lambda k: k.CategoricalCrossentropy(label_smoothing=0.1),
    ),
    "categorical focal": (
        CategoricalFocalCrossentropy(), "softmax", ONE_HOT, lambda k: k.CategoricalFocalCrossentropy(),
    ),
    "binary": (BinaryCrossentropy(0.1), "sigmoid", SEVERAL, lambda k: k.BinaryCrossentropy(label_smoothing=0.1)),
    "binary focal": (
        BinaryFocalCrossentropy(gamma=1.5, alpha=0.25), "sigmoid", SEVERAL,
        lambda k: k.BinaryFocalCrossentropy(apply_class_balancing=True, gamma=1.5),
    ),
    "mse": (MeanSquaredError(), None, VALUES, lambda k: k.MeanSquaredError()),
    "mse of a sigmoid": (MeanSquaredError(), "sigmoid", VALUES, lambda k: k.MeanSquaredError()),
    "mae": (MeanAbsoluteError(), None, VALUES, lambda k: k.MeanAbsoluteError()),
    "huber": (Huber(0.4), None, VALUES, lambda k: k.Huber(0.4)),
}  # fmt: skip


def targets(kind: str, rng) -> np.ndarray:
    labels = rng.integers(0, OUTPUTS, N)
    return {
        LABELS: labels,
        ONE_HOT: np.eye(OUTPUTS, dtype=np.float32)[labels],
        SEVERAL: rng.integers(0, 2, (N, OUTPUTS)).astype(np.float32),
        VALUES: rng.standard_normal((N, OUTPUTS)).astype(np.float32),
    }[kind]


@pytest.mark.parametrize("case", CASES)
def test_an_update(keras, case):
    loss, head, kind, theirs = CASES[case]
    rng = np.random.default_rng(0)
    x, y, weights = rng.standard_normal((N, FEATURES)).astype(np.float32), targets(kind, rng), rng.uniform(0, 2, N)
    model = Model(network(head)).compile(SGD(RATE), loss)
    reference = twin(keras, model, head, theirs(keras.losses))
    assert model.evaluate(x, y)["loss"] == pytest.approx(reference.evaluate(x, y, verbose=0), rel=1e-5)
    logs = model.train_on_batch(x, y, 4, sample_weight=weights)
    expected = reference.train_on_batch(x, y, sample_weight=weights)
    assert logs["loss"] == pytest.approx(float(np.ravel(expected)[0]), rel=1e-5)
    for name, theirs in zip(model.network.parameters, reference.get_weights(), strict=True):
        np.testing.assert_allclose(model.weights[name], theirs, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("case", ["sparse", "categorical"])
def test_class_weights(keras, case):
    loss, head, kind, theirs = CASES[case]
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((N, FEATURES)).astype(np.float32), targets(kind, rng)
    model = Model(network(head)).compile(SGD(RATE), loss)
    reference, weights = twin(keras, model, head, theirs(keras.losses)), {0: 3.0, 2: 0.0}
    model.fit(x, y, N, class_weight=weights)
    every = dict.fromkeys(range(OUTPUTS), 1.0) | weights
    reference.fit(x, y, N, class_weight=every, verbose=0)
    for name, theirs in zip(model.network.parameters, reference.get_weights(), strict=True):
        np.testing.assert_allclose(model.weights[name], theirs, atol=2e-6, err_msg=name)


def test_several_outputs(keras):
    """A loss for each output, with weights, as Keras adds them up."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((N, FEATURES)).astype(np.float32)
    y = {"kind": rng.integers(0, 3, N), "size": rng.standard_normal((N, 1)).astype(np.float32)}
    net = Network("two", (FEATURES,))
    net.add("hidden", Dense(9))
    net.add("relu", ReLU())
    net.add("logits", Dense(3))
    net.add("kind", Softmax())
    net.add("size", Dense(1), "relu")
    net.outputs = ("kind", "size")
    losses, loss_weights = {"kind": SoftmaxCrossEntropy(), "size": Huber()}, {"kind": 0.3, "size": 2.0}
    model = Model(net).compile(SGD(RATE), losses, loss_weights=loss_weights)
    layers, weights = keras.layers, model.weights
    inputs = layers.Input((FEATURES,))
    hidden = layers.Dense(9, "relu")(inputs)
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(hidden), "size": layers.Dense(1, name="size")(hidden),
    }  # fmt: skip
    reference = keras.Model(inputs, outputs)
    reference.set_weights([weights[f"{a}/{b}"] for a in ("hidden", "logits", "size") for b in ("kernel", "bias")])
    reference.compile(
        keras.optimizers.SGD(RATE), {"kind": "sparse_categorical_crossentropy", "size": "huber"},
        loss_weights=loss_weights, jit_compile=False,
    )  # fmt: skip
    expected = reference.train_on_batch(x, y, return_dict=True)
    logs = model.train_on_batch(x, y, 4)
    assert logs["loss"] == pytest.approx(float(expected["loss"]), rel=1e-5)
    ours = [model.weights[f"{a}/{b}"] for a in ("hidden", "logits", "size") for b in ("kernel", "bias")]
    for one, other in zip(ours, reference.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
