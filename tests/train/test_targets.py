"""Targets of any shape, and weights of examples and classes."""

import numpy as np
import pytest

from edgelearn.errors import NonFiniteError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import (
    SGD,
    Adam,
    Conv2D,
    Dense,
    Flatten,
    GlobalAveragePooling2D,
    LogSoftmax,
    ReLU,
    Reshape,
    Sigmoid,
    Softmax,
)
from edgelearn.ops.losses import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Huber,
    MeanSquaredError,
    MinimumEntropy,
    SoftmaxCrossEntropy,
)
from edgelearn.train import Model
from edgelearn.train.metrics import TopKAccuracy
from edgelearn.train.sources import as_targets, labeled

from .toys import CLASSES, examples, same, toy_network


def vector(*ends, outputs: int = 3, features: int = 5) -> Network:
    net = Network("vector", (features,))
    net.add("hidden", Dense(7))
    net.add("relu", ReLU())
    net.add("dense", Dense(outputs))
    for end in ends:
        net.add(type(end).__name__.lower(), end)
    return net


def pixels(*ends) -> Network:
    net = Network("pixels", (4, 5, 3))
    net.add("conv", Conv2D(8, 3, padding="same"))
    net.add("relu", ReLU())
    net.add("out", Conv2D(3, 1))
    for end in ends:
        net.add(type(end).__name__.lower(), end)
    return net


def numeric_gradient(model: Model, loss, x, y, name: str, place: tuple, weights=None, step: float = 1e-2) -> float:
    """Difference of the mean loss, from outputs that the model predicts."""

    def mean(sign: float) -> float:
        moved = {key: array.copy() for key, array in model.weights.items()}
        moved[name][place] += sign * step
        twin = Model(model.network, moved, share_with=model).compile(SGD(), loss)
        return twin.evaluate(x, y, sample_weight=weights)["loss"]

    return (mean(1) - mean(-1)) / (2 * step)


@pytest.mark.parametrize(
    ("net", "loss", "shape"),
    [
        (pixels(Softmax()), SoftmaxCrossEntropy(), None),
        (pixels(Softmax()), CategoricalCrossentropy(), (4, 5, 3)),
        (pixels(Sigmoid()), BinaryCrossentropy(), (4, 5, 3)),
        (pixels(), MeanSquaredError(), (4, 5, 3)),
        (pixels(Reshape((20, 3))), MeanSquaredError(), (20, 3)),
        (pixels(Flatten()), Huber(), (60,)),
    ],
)
def test_pixels(net, loss, shape):
    """Gradients of targets for each pixel, with weights of pixels, in micro-batches of two sizes."""
    rng = np.random.default_rng(0)
    n, rows = 5, shape[:-1] if shape else (4, 5)
    x = rng.standard_normal((n, 4, 5, 3)).astype(np.float32)
    y = rng.uniform(size=(n, *shape)) if shape else rng.integers(0, 3, (n, 4, 5))
    weights = rng.uniform(0.5, 2, (n, *rows))
    model = Model(net).compile(SGD(0.1), loss)
    gradients = model.gradients(x, y, micro_batch=2, sample_weight=weights)
    for name, place in (("out/kernel", (0, 0, 3, 1)), ("conv/bias", (2,))):
        expected = numeric_gradient(model, loss, x, y, name, place, weights)
        assert gradients[name][place] == pytest.approx(expected, rel=2e-2, abs=1e-4)
    whole = model.gradients(x, y, sample_weight=weights)
    for name, gradient in whole.items():
        np.testing.assert_allclose(gradients[name], gradient, atol=1e-6)


def test_loss_and_accuracy_of_pixels_are_means():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 4, 5, 3)).astype(np.float32), rng.integers(0, 3, (5, 4, 5))
    model = Model(pixels(Softmax()))
    p = model.predict(x).astype(np.float64)
    assert p.sum(-1) == pytest.approx(np.ones((5, 4, 5)), abs=1e-6)
    logs = model.evaluate(x, y, 2)
    own = np.take_along_axis(p, y[..., None], -1)
    assert logs == pytest.approx({"loss": -np.log(own).mean(), "accuracy": (p.argmax(-1) == y).mean()}, rel=1e-5)


def test_nothing_is_right_in_a_regression():
    x, y = np.ones((4, 5), np.float32), np.zeros((4, 3))
    model = Model(vector()).compile(SGD(0.01), MeanSquaredError())
    history = model.fit(x, y, 2, 2, validation_data=(x, y)).history
    assert set(history) == {"loss", "val_loss", "seconds"}
    assert model.evaluate(x, y).keys() == {"loss"}


class TestWeights:
    """`sample_weight` and `class_weight`."""

    def test_weights_of_1_change_no_bit(self):
        x, y = examples(20)
        plain, weighted = (Model(toy_network()).compile(Adam(0.01)) for _ in range(2))
        plain.fit(x, y, 8, 2, micro_batch=3)
        weighted.fit(x, y, 8, 2, micro_batch=3, sample_weight=np.ones(20), class_weight={1: 1.0})
        assert same(plain.weights, weighted.weights)

    def test_a_weight_of_2_is_an_example_twice(self):
        x, y = examples(6)
        weights = np.array([1, 2, 0, 1, 3, 1])
        often = np.repeat(np.arange(6), weights)
        model = Model(toy_network(), model_weights()).compile(SGD(0.1))
        got = model.gradients(x, y, sample_weight=weights)
        expected = model.gradients(x[often], y[often])
        for name, gradient in expected.items():
            np.testing.assert_allclose(got[name], gradient * len(often) / 6, rtol=2e-4, atol=1e-6)
        logs, often_logs = model.evaluate(x, y, sample_weight=weights), model.evaluate(x[often], y[often])
        assert logs["loss"] == pytest.approx(often_logs["loss"] * len(often) / 6, rel=1e-5)

    def test_weights_of_classes_are_weights_of_their_examples(self):
        x, y = examples(12)
        table = np.array([0.5, 1.0, 4.0])
        one, other, one_hot = (
            Model(toy_network(), model_weights()).compile(SGD(0.1), loss)
            for loss in (SoftmaxCrossEntropy(), SoftmaxCrossEntropy(), CategoricalCrossentropy())
        )
        one.fit(x, y, 5, 1, class_weight={0: 0.5, 2: 4})
        other.fit(x, y, 5, 1, sample_weight=table[y])
        one_hot.fit(x, np.eye(CLASSES)[y], 5, 1, class_weight={0: 0.5, 2: 4.0})
        assert same(one.weights, other.weights)
        for name, array in one_hot.weights.items():
            np.testing.assert_allclose(array, one.weights[name], atol=1e-5)

    def test_two_classes_at_one_output(self):
        x, y = np.ones((4, 5), np.float32), np.array([0, 1, 1, 0])
        net = vector(Sigmoid(), outputs=1)
        values = labeled(x, y, net, BinaryCrossentropy(), class_weight={1: 3})[1]
        assert values.values["sigmoid"].shape == (4, 1)
        assert values.weights["sigmoid"].ravel().tolist() == [1, 3, 3, 1]

    def test_validation_weights_alone(self):
        x, y = examples(8)
        model = Model(toy_network()).compile(SGD(0.1))
        weights = np.arange(8.0)
        history = model.fit(x, y, 4, 1, validation_data=(x, y, weights)).history
        assert history["val_loss"][0] == pytest.approx(model.evaluate(x, y, sample_weight=weights)["loss"], rel=1e-5)

    def test_a_trainer_takes_them(self):
        x, y = examples(8)
        model, weights = Model(toy_network(), model_weights()).compile(SGD(0.1)), np.arange(8.0)
        with model.trainer(8, weighted=True) as trainer:
            logs = trainer.step(x, y, weights)
            assert logs["loss"] == pytest.approx(model.train_on_batch(x, y, sample_weight=weights)["loss"], rel=1e-6)
        with model.trainer(8) as trainer, pytest.raises(PlanError, match="weighted=True"):
            trainer.step(x, y, weights)

    @pytest.mark.parametrize("weights", [np.ones(5), np.ones((6, 2)), [-1] * 6, [np.nan] * 6, ["a"] * 6])
    def test_bad_weights_of_examples(self, weights):
        x, y = examples(6)
        with pytest.raises(ShapeError, match="sample_weight"):
            labeled(x, y, toy_network(), SoftmaxCrossEntropy(), weights)

    @pytest.mark.parametrize("weights", [{3: 1.0}, {-1: 1.0}, {"a": 1.0}, {0: -1.0}])
    def test_bad_weights_of_classes(self, weights):
        x, y = examples(6)
        with pytest.raises(PlanError, match="classes 0 to 2"):
            labeled(x, y, toy_network(), SoftmaxCrossEntropy(), class_weight=weights)

    def test_losses_without(self):
        x, y = examples(6)
        with pytest.raises(PlanError, match="MinimumEntropy"):
            Model(toy_network()).compile(SGD(0.1), MinimumEntropy()).fit(x, y, sample_weight=np.ones(6))
        with pytest.raises(PlanError, match="MeanSquaredError"):
            labeled(np.ones((6, 5)), np.ones((6, 3)), vector(), MeanSquaredError(), class_weight={0: 1})


def model_weights() -> dict[str, np.ndarray]:
    """Weights whose statistics count as set, so that an example's gradient doesn't depend on the others."""
    return toy_network().initialize(3)


@pytest.mark.parametrize(
    ("y", "shape", "loss", "words"),
    [
        ([0, 1], (3,), MeanSquaredError(), ("(2, 3)", "int64", "np.eye(3)[y]", "SoftmaxCrossEntropy")),
        (np.zeros((2, 4)), (3,), MeanSquaredError(), ("(2, 3)", "(2, 4)", "float64")),
        (np.full((2, 3), 2.0), (3,), BinaryCrossentropy(), ("0 to 1", "2 to 2", "MeanSquaredError")),
        (np.full((2, 3), np.nan), (3,), CategoricalCrossentropy(), ("0 to 1",)),
        (np.zeros((2, 3)), (3,), SoftmaxCrossEntropy(), ("float64", "(2, 3)", "CategoricalCrossentropy")),
        (np.eye(3)[[0, 1]], (3,), SoftmaxCrossEntropy(), ("one-hot", "argmax", "CategoricalCrossentropy")),
        ([0, 1], (4, 4, 3), SoftmaxCrossEntropy(), ("(2, 4, 4)", "Dense")),
        (["a", "b"], (3,), SoftmaxCrossEntropy(), ("<U1",)),
    ],
)
def test_errors_name_what_is_given_and_what_to_give(y, shape, loss, words):
    with pytest.raises(ShapeError) as raised:
        as_targets(y, 2, shape, loss)
    assert all(word in str(raised.value) for word in words)


def test_probabilities_behind_a_reshape_are_no_logits():
    """They would be taken for logits without a word. To predict, no loss is needed."""
    net = pixels(Softmax(), Flatten())
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 3)).astype(np.float32)
    model = Model(net).compile(SGD(0.1))
    assert np.allclose(model.predict(x).reshape(2, 20, 3).sum(-1), 1, atol=1e-5)
    for train in (model.fit, model.evaluate):
        with pytest.raises(PlanError, match=r"softmax.*\(4, 5, 3\) to \(60,\)"):
            train(x, [0, 1])
    assert model.compile(SGD(0.1), MeanSquaredError()).fit(x, np.ones((2, 60))).epoch == [0]


@pytest.mark.parametrize("kind", (Softmax, LogSoftmax))
def test_a_head_may_be_reshaped(kind):
    """As exporters write it: the loss takes the head's input if the rows stay."""
    x, y = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32), np.arange(6) % 3
    plain, reshaped = (Model(vector(*ends), seed=0) for ends in ((Softmax(),), (kind(), Reshape((1, 1, 3)), Flatten())))
    expected = plain.compile(SGD(0.1)).fit(x, y, epochs=2).history
    found = reshaped.compile(SGD(0.1), metrics=[TopKAccuracy(2)]).fit(x, y, epochs=2).history
    assert found["loss"] == expected["loss"] and same(plain.weights, reshaped.weights)
    outputs = plain.predict(x)
    assert np.allclose(reshaped.predict(x), outputs if kind is Softmax else np.log(outputs), atol=1e-5)


def test_a_target_that_is_not_finite_is_named():
    x, y = np.ones((4, 5), np.float32), np.zeros((4, 3))
    y[2, 1] = np.inf
    with pytest.raises(NonFiniteError, match="example 2"):
        Model(vector()).compile(SGD(0.1), MeanSquaredError()).fit(x, y, shuffle=False)


def test_pooled_regression_learns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4, 4, 3)).astype(np.float32)
    y = x.mean((1, 2)) @ np.array([1.0, -2.0, 0.5])
    net = Network("mean", (4, 4, 3))
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(1))
    history = Model(net).compile(SGD(0.4), MeanSquaredError()).fit(x, y, 20, 60).history
    assert history["loss"][-1] < 1e-3 * history["loss"][0]
