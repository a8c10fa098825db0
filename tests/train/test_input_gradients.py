"""Gradients of inputs, against differences, Keras, and themselves by smaller micro-batches."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    Softmax,
    Tanh,
)

from .toys import examples, toy_network


@pytest.mark.parametrize("batchnorm", ["moving", "batch"])
def test_against_keras(batchnorm):
    tf = pytest.importorskip("tensorflow")
    from edgelearn.interop.to_keras import to_keras

    network, (x, y) = toy_network(dropout=0.5), examples(5)
    model = el.Model(network, seed=1).compile(el.SGD(0.1), batchnorm=batchnorm)
    model.fit(*examples(40), batch_size=20)
    theirs, images = to_keras(network, model.weights, logits=True), tf.Variable(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, theirs(images, training=False)))
    expected = tape.gradient(loss, images).numpy()
    before = model.weights
    for micro_batch in (None, 2):
        found = model.gradients(x, y, micro_batch, of="inputs")
        np.testing.assert_allclose(found, expected, atol=1e-6 + 1e-4 * np.abs(expected).max())
    assert all(np.array_equal(array, before[name]) for name, array in model.weights.items())


def test_several_inputs_that_are_read_by_several_layers():
    """Differences of the loss, for inputs that a sum, a pooling and convolutions read, in 1 to 20 channels."""
    rng = np.random.default_rng(0)
    net = el.Network("several", {"a": (4, 4, 3), "b": (4, 4, 3), "c": (20,)})
    net.add("sum", Add(), "a", "b")
    net.add("conv", Conv2D(17, 1), "a")
    net.add("tanh", Tanh())
    net.add("depthwise", DepthwiseConv2D(3, padding="same"), "b")
    net.add("bn", BatchNormalization(), "sum")
    net.add("both", Concatenate(), "tanh", "depthwise", "bn")
    net.add("pool", AveragePooling2D(2))
    net.add("flat", Flatten())
    net.add("drop", Dropout(0.3))
    net.add("dense", Dense(6), "c")
    net.add("all", Concatenate(), "drop", "dense")
    net.add("classes", Dense(3))
    net.add("softmax", Softmax())
    model = el.Model(net, seed=2).compile(el.SGD(0.1), batchnorm="moving")
    x = {name: rng.standard_normal((3, *shape)).astype(np.float32) for name, shape in net.inputs.items()}
    y, found = rng.integers(0, 3, 3), None
    found = model.gradients(x, y, 2, of="inputs")
    assert {name: array.shape for name, array in found.items()} == {name: array.shape for name, array in x.items()}
    for name, array in x.items():
        step = rng.standard_normal(array.shape).astype(np.float32)
        losses = [model.evaluate({**x, name: array + sign * 1e-2 * step}, y)["loss"] for sign in (1, -1)]
        assert (found[name] * step).sum() == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=2e-2, abs=2e-4)


def test_the_score_of_a_class():
    """A function as the loss gives the gradient of an output itself, of frozen networks, too."""
    net, x = el.Network("smooth", (6,)), np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    for name, op in {"hidden": Dense(8), "tanh": Tanh(), "scores": Dense(3)}.items():
        net.add(name, op)
    model = el.Model(net.freeze()).compile(el.SGD(0.1), lambda xp, t, y: xp.sum(t * y, axis=-1))
    found = model.gradients(x, np.eye(3)[[0, 1, 2, 0]], of="inputs") * 4  # of the sum over examples
    step = 1e-2 * np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    ahead, behind = (model.predict(x + sign * step)[np.arange(4), [0, 1, 2, 0]] for sign in (1, -1))
    np.testing.assert_allclose((found * step).sum(1), (ahead - behind) / 2, rtol=1e-2, atol=1e-5)


def test_what_has_no_gradients_of_inputs():
    with pytest.raises(PlanError, match="'weights' or 'inputs'"):
        el.Model(toy_network()).compile(el.SGD(0.1)).gradients(*examples(2), of="biases")
    net = el.Network("partly", {"read": (4, 4, 2), "unread": (3,)})
    net.add("unused", Dense(2), "unread")
    net.add("pool", GlobalAveragePooling2D(), "read")
    net.add("dense", Dense(2))
    x = {"read": np.ones((2, 4, 4, 2)), "unread": np.ones((2, 3))}
    with pytest.raises(PlanError, match="no gradient by the input 'unread'"):
        el.Model(net).compile(el.SGD(0.1)).gradients(x, [0, 1], of="inputs")
