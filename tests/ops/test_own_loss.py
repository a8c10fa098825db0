"""Losses that are plain functions: the generated kernel against float64, and values and gradients against Keras, which
runs the same function."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.ops.loss import formula_loss

from .losses import check_loss, check_reference


def log_cosh(xp, targets, outputs):
    d = xp.abs(outputs - targets)
    return d + xp.log1p(xp.exp(-2 * d)) - 0.6931472


def distilled(xp, targets, outputs):
    """Cross-entropy of two softmaxes at temperature 4 (Hinton et al. 2015)."""
    p = xp.softmax(targets / 4, axis=-1)
    return -16 * xp.sum(p * xp.log_softmax(outputs / 4, axis=-1), axis=-1)


def cosine(xp, targets, outputs):
    a, b = (xp.rsqrt(xp.sum(xp.square(v), axis=-1, keepdims=True) + 1e-6) for v in (outputs, targets))
    return 1 - xp.sum(outputs * a * targets * b, axis=-1)


def quantiles(xp, targets, outputs):
    d = targets - outputs
    return xp.maximum(0.9 * d, -0.1 * d) + 0.01 * xp.where((d > -1) & (d < 1), d**2, xp.abs(d) ** 1.5)


def centred(xp, targets, outputs):
    """The values of a row matter to one another: a variance, a range, and the same mean twice."""
    mean = xp.mean(outputs, axis=-1, keepdims=True)
    spread = xp.max(outputs, axis=-1, keepdims=True) - xp.min(outputs, axis=-1, keepdims=True)
    return xp.square(outputs - mean - targets) * xp.sigmoid(mean) + 0.1 * xp.sqrt(spread + 1)


def many(xp, targets, outputs):
    x = xp.clip(outputs, -1.5, 1.5)
    return xp.tanh(x) * targets + xp.erf(x) + xp.expm1(x / 2) + xp.log(xp.exp(x) + 2) + xp.minimum(x, targets) / (2 + x)


LOSSES = (log_cosh, distilled, cosine, quantiles, centred, many)


@pytest.mark.parametrize("function", LOSSES)
@pytest.mark.parametrize("outputs", (1, 33))
def test_against_float64(bench, rng, function, outputs):
    if outputs == 1 and function in (cosine, distilled):
        return  # a constant, whose gradient is 0
    x, y = rng.standard_normal((2, 9, outputs)) * 2
    check_loss(bench, formula_loss(function), x, y, 0, share=3, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize("function", LOSSES)
def test_rows_of_pixels(bench, rng, function):
    check_loss(bench, formula_loss(function), *rng.standard_normal((2, 2, 3, 5, 17)), 0)


@pytest.mark.parametrize("function", LOSSES)
def test_gradients_against_differences(rng, function):
    check_reference(formula_loss(function), *rng.standard_normal((2, 3, 5)))


@pytest.mark.parametrize("function", LOSSES)
def test_against_keras(rng, function):
    tf, keras = pytest.importorskip("tensorflow"), pytest.importorskip("keras")
    x, y = rng.standard_normal((2, 4, 6))
    outputs = tf.Variable(x, dtype=tf.float64)
    with tf.GradientTape() as tape:
        mean = tf.reduce_mean(function(keras.ops, tf.constant(y), outputs))
    losses, gradient = formula_loss(function).reference(x, y)
    assert losses.mean() == pytest.approx(float(mean), rel=1e-9)
    np.testing.assert_allclose(gradient, tape.gradient(mean, outputs).numpy(), atol=1e-9)


def test_training_by_a_function_is_training_by_the_loss_it_is():
    rng, network = np.random.default_rng(0), el.Network("line", (5,))
    network.add("dense", el.ops.Dense(3))
    x, y = rng.standard_normal((2, 40, 5)).astype(np.float32)[:, :, :5]
    y = y[:, :3]
    weights, figures = {}, {}
    for name, loss in {"own": lambda xp, targets, outputs: xp.square(outputs - targets), "mse": "mse"}.items():
        model = el.Model(network).compile(el.SGD(0.1), loss)
        figures[name] = model.fit(x, y, batch_size=8, micro_batch=3, epochs=2).history["loss"]
        weights[name] = model.weights["dense/kernel"]
    np.testing.assert_allclose(weights["own"], weights["mse"], rtol=1e-5)
    np.testing.assert_allclose(figures["own"], figures["mse"], rtol=1e-5)


def test_equal_functions_make_one_plan():
    assert formula_loss(log_cosh) == formula_loss(log_cosh)
    assert hash(formula_loss(log_cosh)) == hash(formula_loss(log_cosh))


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda xp, t, y: np.exp(y), "can't index, branch or call NumPy"),
        (lambda xp, t, y: xp.cumsum(y), "cumsum is no function of formulas: there are abs"),
        (lambda xp, t, y: y if t > 0 else -y, "branches on a value: write where"),
        (lambda xp, t, y: xp.sum(y), r"write sum\(x, axis=-1\)"),
        (lambda xp, t, y: y[0], "not subscriptable"),
        (lambda xp, t, y: y * np.ones(3), "holds an array"),
        (lambda xp, t, y: 2**y, "no formula"),
        (lambda xp, t, y: t, "doesn't depend on the outputs"),
        (lambda xp, t, y: 1.0, "isn't computed from its outputs"),
        (lambda t, y: y, "no formula"),
    ],
)
def test_what_is_no_formula_is_refused(function, problem):
    with pytest.raises(PlanError, match=problem):
        formula_loss(function)
