"""Triplet loss: the kernel against float64, that against TensorFlow, and a network that learns from it."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.ops import TripletLoss

from .losses import check_loss, check_reference

LOSSES = [TripletLoss(margin, mining, distance) for mining in ("hard", "given") for margin, distance in
          ((0.5, "squared"), (1.0, "euclidean"))]  # fmt: skip


def right(loss, x, y) -> float:
    d = np.linalg.norm(np.float32(x)[:, None] - np.float32(x), axis=-1)
    pairs = [(anchor, loss._pair(anchor, d[anchor], y)) for anchor in range(len(x))]
    return sum(d[a, pair[0]] < d[a, pair[1]] for a, pair in pairs if pair) * (3 if loss.ordered else 1)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize(("n", "size"), [(12, 1), (9, 16), (30, 33), (3, 5)])
def test_kernel(bench, rng, loss, n, size):
    x, y = rng.standard_normal((n, size)), rng.integers(0, 3, n)
    check_loss(bench, loss, x, y, right(loss, x, y), share=2)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_gradients_against_differences(rng, loss):
    check_reference(loss, rng.standard_normal((12, 3)), np.repeat([0, 1, 2, 3], 3))


def test_one_class_alone_has_no_loss(bench, rng):
    check_loss(bench, TripletLoss(), rng.standard_normal((5, 4)), np.zeros(5, int), 0)
    check_loss(bench, TripletLoss(), rng.standard_normal((5, 4)), np.arange(5), 0)


def test_hard_triplets_against_tensorflow(rng):
    """Batch hard as its authors' code has it: a masked maximum and a masked minimum of all distances."""
    tf = pytest.importorskip("tensorflow")
    x, y = tf.Variable(rng.standard_normal((10, 6))), np.repeat([0, 1], 5)
    same = tf.constant(y[:, None] == y)
    with tf.GradientTape() as tape:
        d = tf.reduce_sum(tf.square(x[:, None] - x[None]), -1)
        positive = tf.reduce_max(tf.where(same, d, 0.0), 1)
        negative = tf.reduce_min(tf.where(same, np.inf, d), 1)
        mean = tf.reduce_mean(tf.maximum(positive - negative + 0.2, 0.0))
    losses, gradient = TripletLoss().reference(x.numpy(), y)
    assert losses.mean() == pytest.approx(float(mean))
    np.testing.assert_allclose(gradient, tape.gradient(mean, x).numpy(), atol=1e-12)


@pytest.mark.parametrize("mining", ["hard", "given"])
def test_a_network_learns(rng, mining):
    """Classes that differ in two of ten features; those of the other eight are larger."""
    y = np.tile([0, 0, 1, 1, 1, 0], 16)
    x = rng.standard_normal((96, 10)).astype(np.float32) * 2
    x[:, 0] = y * 2 + rng.normal(0, 0.3, 96)
    network = el.Network("embedding", (10,))
    network.add("dense", el.ops.Dense(4))
    model = el.Model(network, seed=1).compile(el.Adam(0.02), TripletLoss(1.0, mining))
    before = model.evaluate(x, y, batch_size=24)["accuracy"]
    model.fit(x, y, batch_size=24, epochs=30, shuffle=mining == "hard")
    assert model.evaluate(x, y, batch_size=24)["accuracy"] > before + 0.2


def test_what_makes_no_triplets():
    with pytest.raises(PlanError, match="multiple of 3"):
        TripletLoss(mining="given").check((4,), 8)
    with pytest.raises(PlanError, match="hard or given"):
        TripletLoss(mining="all")
