"""Examples and targets: sources, batches with their labels, several inputs and outputs, weights."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest

import edgelearn as el
from edgelearn import ops
from edgelearn.compile import Precision, policies
from edgelearn.errors import DataError, NonFiniteError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, MeanSquaredError, Softmax, SoftmaxCrossEntropy
from edgelearn.train import Callback, Model, PictureSource, Subset, VariedSource
from edgelearn.train.metrics import TopKAccuracy
from edgelearn.train.sources import as_source, as_targets, at_epoch, labeled, varies
from edgelearn.train.trainer import ahead, mini_batches
from tests.train.toys import CLASSES, examples, same, toy_network


@pytest.fixture
def pictures():
    return np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)


def test_every_source_gives_the_same_examples(pictures):
    floats = pictures / np.float32(128) - 1
    asked = []

    def load(indices, size):
        asked.append((list(indices), size))
        return pictures[indices]

    source = PictureSource(5, 4, load, lambda p: p / np.float32(128) - 1)
    chosen = np.array([4, 1])
    np.testing.assert_array_equal(source[chosen], floats[chosen])
    assert asked == [([4, 1], 4)]
    subset = Subset(Subset(source, np.array([0, 4, 2, 1])), np.array([3, 1]))  # 1, 4
    np.testing.assert_array_equal(subset[np.array([1, 0])], floats[chosen])
    assert len(source) == 5 and len(subset) == 2
    assert source.shape == floats.shape and subset.shape == (2, 4, 4, 3)


def test_a_varied_source_shows_each_epoch_what_it_says(pictures):
    def vary(images, indices, epoch):
        return images + np.uint8(epoch) + indices[:, None, None, None].astype(np.uint8)

    source = VariedSource(pictures, vary, np.float32)
    chosen = np.array([3, 0])
    for some, numbers in (source, chosen), (Subset(source, np.array([0, 3])), np.array([1, 0])):
        assert varies(some) and some.shape == (len(some), 4, 4, 3)
        for epoch in (2, 0, 7):
            expected = np.float32(vary(pictures[chosen], chosen, epoch))
            np.testing.assert_array_equal(at_epoch(some, epoch)[numbers], expected)


def test_what_does_not_vary_is_the_same_in_every_epoch(pictures):
    assert at_epoch(pictures, 3) is pictures and not varies(pictures)
    subset = Subset(pictures, np.array([4]))
    assert not varies(subset)
    np.testing.assert_array_equal(at_epoch(subset, 3)[np.array([0])], pictures[4:])


def test_arrays_and_lists_are_sources(pictures):
    network = Network("n", (4, 4, 3))
    assert as_source(pictures, network) is pictures
    np.testing.assert_array_equal(as_source(pictures.tolist(), network)[np.array([2])], pictures[2:3])


def test_targets_are_told_apart():
    loss = SoftmaxCrossEntropy()
    labels = as_targets([2, 0], 2, (3,), loss)
    assert labels.tolist() == [2, 0] and labels.dtype == np.int32
    one_hot = np.eye(3)[[2, 0]]
    for rows in (one_hot, one_hot.astype(int), one_hot.astype(bool)):
        with pytest.raises(ShapeError, match=r"SoftmaxCrossEntropy.*one-hot.*argmax"):
            as_targets(rows, 2, (3,), loss)
    for targets in (np.array([2.0, 0.0]), np.array([[0.3, 0.7], [0.5, 0.5]])):
        with pytest.raises(ShapeError, match=r"SoftmaxCrossEntropy.*float64"):
            as_targets(targets, 2, (3,), loss)
    with pytest.raises(ShapeError, match="0 to 2; found 0 to 3"):
        as_targets([3, 0], 2, (3,), loss)


X, Y = examples(10)


class Loader:
    """Batches of 4, 4 and 2; counts its passes."""

    def __init__(self, x=X, y=Y, size=4):
        self.x, self.y, self.size, self.passes = x, y, size, 0

    def __iter__(self):
        self.passes += 1
        for start in range(0, len(self.x), self.size):
            yield self.x[start : start + self.size], self.y[start : start + self.size]


def endless(size=4):
    while True:
        for start in range(0, len(X) - size + 1, size):
            yield X[start : start + size], Y[start : start + size]


def make():
    return Model(toy_network(), seed=3).compile(SGD(0.1, momentum=0.9), metrics=["accuracy"])


@pytest.fixture(scope="module")
def expected():
    model = make()
    history = model.fit(X, Y, 4, 3, shuffle=False, validation_data=(X, Y))
    return model.weights, history.history


@pytest.mark.parametrize("micro_batch", [None, 1])
@pytest.mark.parametrize("kind", ["loader", "function", "list"])
def test_the_bits_of_arrays(expected, kind, micro_batch):
    batches = {"loader": Loader(), "function": lambda: iter(Loader()), "list": list(Loader())}[kind]
    model = make()
    if micro_batch is None:
        history = model.fit(batches, epochs=3, validation_data=Loader(size=3))
        assert same(model.weights, expected[0])
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert history.history[name] == pytest.approx(expected[1][name])
    else:
        other = make()
        other.fit(X, Y, 4, 3, shuffle=False, micro_batch=1)
        model.fit(batches, epochs=3, micro_batch=1)
        assert same(model.weights, other.weights)


def test_each_epoch_is_a_pass():
    loader = Loader()
    make().fit(loader, epochs=3)
    assert loader.passes == 1 + 1 + 3  # the first batch, the count, and epochs


def test_steps_of_a_generator_go_on_from_epoch_to_epoch():
    seen = []

    def batches():
        for number, batch in enumerate(endless()):
            seen.append(number)
            yield batch

    model, other = make(), make()
    model.fit(batches(), steps_per_epoch=3, epochs=2)
    twelve = np.r_[0:8, 0:4], np.r_[4:8, 0:8]
    for epoch, order in enumerate(twelve):
        other.fit(X[order], Y[order], 4, epoch + 1, shuffle=False)
    assert same(model.weights, other.weights) and len(seen) <= 7
    assert model.evaluate(endless(), steps=2)["loss"] == pytest.approx(model.evaluate(X[:8], Y[:8])["loss"])


def test_steps_of_what_can_be_read_again():
    model, other = make(), make()
    model.fit(Loader(X[:8], Y[:8]), steps_per_epoch=3)
    order = np.r_[0:8, 0:4]
    other.fit(X[order], Y[order], 4, shuffle=False)
    assert same(model.weights, other.weights)


def test_weights_of_examples_and_classes():
    weights = np.linspace(0, 2, 10)
    model, other = make(), make()
    batches = [(X[i : i + 5], Y[i : i + 5], weights[i : i + 5]) for i in (0, 5)]
    model.fit(batches, class_weight={0: 3})
    other.fit(X, Y, 5, shuffle=False, sample_weight=weights, class_weight={0: 3})
    assert same(model.weights, other.weights)
    assert model.evaluate(batches)["loss"] == pytest.approx(other.evaluate(X, Y, sample_weight=weights)["loss"])


def test_several_inputs_and_outputs():
    network = el.Network("two", {"a": (3,), "b": (3,)})
    network.add("sum", ops.Add(), "a", "b")
    network.add("first", Dense(2), "sum")
    network.add("second", Dense(2), "sum")
    network.outputs = ("first", "second")
    a, b = np.random.default_rng(0).random((2, 8, 3), np.float32)
    y = np.arange(8) % 2
    model, other = (Model(network, seed=1).compile(SGD(0.1)) for _ in range(2))
    named = [({"a": a[i : i + 4], "b": b[i : i + 4]}, {"first": y[i : i + 4], "second": y[i : i + 4]}) for i in (0, 4)]
    model.fit(named)
    other.fit([((a[i : i + 4], b[i : i + 4]), (y[i : i + 4], y[i : i + 4])) for i in (0, 4)])
    assert same(model.weights, other.weights)
    other = Model(network, seed=1).compile(SGD(0.1))
    other.fit({"a": a, "b": b}, {"first": y, "second": y}, 4, shuffle=False)
    assert same(model.weights, other.weights)


class Tensor:
    """As PyTorch's."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.array


def test_tensors_of_pytorch_have_channels_first():
    model, other = make(), make()
    model.fit([(Tensor(np.moveaxis(x, -1, 1)), Tensor(y)) for x, y in Loader()])
    other.fit(X, Y, 4, shuffle=False)
    assert same(model.weights, other.weights)


def test_an_interrupted_epoch_goes_on():
    class Stop(Callback):
        def on_train_batch_end(self, batch, logs):
            self.model.stop_training = True

    model, other = make(), make()
    model.fit(Loader(), callbacks=[Stop()])
    assert model.position.step == 1
    model.fit(Loader())
    other.fit(X, Y, 4, shuffle=False)
    assert same(model.weights, other.weights)


@pytest.mark.parametrize(
    ("batches", "more", "error", "named"),
    [
        (endless(), {}, PlanError, "generator ends isn't known: give steps_per_epoch"),
        (iter(Loader()), {"steps_per_epoch": 9}, DataError, "ended before the epoch did"),
        ([X, X], {}, DataError, r"\(x, y\) or \(x, y, sample_weight\)"),
        ([{"x": X}], {}, DataError, "not a dict"),
        ([], {}, DataError, "ended before"),
        ([(X[:, :2], Y)], {}, ShapeError, "of shape"),
        ([(X, Y * 1.5)], {}, ShapeError, "class numbers"),
        (Loader(), {"validation_split": 0.2}, PlanError, "can't be split"),
        (Loader(), {"cache": "fp32"}, PlanError, "cached"),
        (Loader(), {"sample_weight": np.ones(10)}, PlanError, "in them"),
        (X, {}, ShapeError, "Targets"),
    ],
    ids=range(11),  # by number: workers must agree on names, and objects have addresses
)
def test_what_cannot_be(batches, more, error, named):
    with pytest.raises(error, match=named):
        make().fit(batches, **more)


def test_steps_of_arrays_are_refused():
    with pytest.raises(PlanError, match="Steps are for a DataLoader"):
        make().fit(X, Y, steps_per_epoch=2)


def test_loaders_of_pytorch():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(np.moveaxis(X, -1, 1)), torch.tensor(Y))
    for drops, count in ((False, 10), (True, 8)):
        model, other = make(), make()
        model.fit(torch.utils.data.DataLoader(data, batch_size=4, drop_last=drops), epochs=2)
        other.fit(X[:count], Y[:count], 4, 2, shuffle=False)
        assert same(model.weights, other.weights)


def test_datasets_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    model, other = make(), make()
    model.fit(data, epochs=2, validation_data=data)
    other.fit(X, Y, 4, 2, shuffle=False)
    assert same(model.weights, other.weights)
    with pytest.raises(PlanError, match="steps_per_epoch"):
        model.fit(data.repeat(), epochs=3)


def vector(*ends, outputs: int = 3, features: int = 5) -> Network:
    net = Network("vector", (features,))
    net.add("hidden", Dense(7))
    net.add("relu", ops.ReLU())
    net.add("dense", Dense(outputs))
    for end in ends:
        net.add(type(end).__name__.lower(), end)
    return net


def pixels(*ends) -> Network:
    net = Network("pixels", (4, 5, 3))
    net.add("conv", ops.Conv2D(8, 3, padding="same"))
    net.add("relu", ops.ReLU())
    net.add("out", ops.Conv2D(3, 1))
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
        (pixels(Softmax()), ops.CategoricalCrossentropy(), (4, 5, 3)),
        (pixels(ops.Sigmoid()), ops.BinaryCrossentropy(), (4, 5, 3)),
        (pixels(), MeanSquaredError(), (4, 5, 3)),
        (pixels(ops.Reshape((20, 3))), MeanSquaredError(), (20, 3)),
        (pixels(ops.Flatten()), ops.Huber(), (60,)),
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
        plain, weighted = (Model(toy_network()).compile(ops.Adam(0.01)) for _ in range(2))
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
            for loss in (SoftmaxCrossEntropy(), SoftmaxCrossEntropy(), ops.CategoricalCrossentropy())
        )
        one.fit(x, y, 5, 1, class_weight={0: 0.5, 2: 4})
        other.fit(x, y, 5, 1, sample_weight=table[y])
        one_hot.fit(x, np.eye(CLASSES)[y], 5, 1, class_weight={0: 0.5, 2: 4.0})
        assert same(one.weights, other.weights)
        for name, array in one_hot.weights.items():
            np.testing.assert_allclose(array, one.weights[name], atol=1e-5)

    def test_two_classes_at_one_output(self):
        x, y = np.ones((4, 5), np.float32), np.array([0, 1, 1, 0])
        net = vector(ops.Sigmoid(), outputs=1)
        values = labeled(x, y, net, ops.BinaryCrossentropy(), class_weight={1: 3})[1]
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
            Model(toy_network()).compile(SGD(0.1), ops.MinimumEntropy()).fit(x, y, sample_weight=np.ones(6))
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
        (np.full((2, 3), 2.0), (3,), ops.BinaryCrossentropy(), ("0 to 1", "2 to 2", "MeanSquaredError")),
        (np.full((2, 3), np.nan), (3,), ops.CategoricalCrossentropy(), ("0 to 1",)),
        (np.zeros((2, 3)), (3,), SoftmaxCrossEntropy(), ("float64", "(2, 3)", "CategoricalCrossentropy")),
        (np.eye(3)[[0, 1]], (3,), SoftmaxCrossEntropy(), ("one-hot", "argmax", "CategoricalCrossentropy")),
        (np.eye(2)[[0, 1]], (2,), SoftmaxCrossEntropy(), ("one-hot", "argmax", "CategoricalCrossentropy")),
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
    net = pixels(Softmax(), ops.Flatten())
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 3)).astype(np.float32)
    model = Model(net).compile(SGD(0.1))
    assert np.allclose(model.predict(x).reshape(2, 20, 3).sum(-1), 1, atol=1e-5)
    for train in (model.fit, model.evaluate):
        with pytest.raises(PlanError, match=r"softmax.*\(4, 5, 3\) to \(60,\)"):
            train(x, [0, 1])
    assert model.compile(SGD(0.1), MeanSquaredError()).fit(x, np.ones((2, 60))).epoch == [0]


@pytest.mark.parametrize("kind", (Softmax, ops.LogSoftmax))
def test_a_head_may_be_reshaped(kind):
    """As exporters write it: the loss takes the head's input if the rows stay."""
    x, y = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32), np.arange(6) % 3
    plain, reshaped = (
        Model(vector(*ends), seed=0) for ends in ((Softmax(),), (kind(), ops.Reshape((1, 1, 3)), ops.Flatten()))
    )
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
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", Dense(1))
    history = Model(net).compile(SGD(0.4), MeanSquaredError()).fit(x, y, 20, 60).history
    assert history["loss"][-1] < 1e-3 * history["loss"][0]


def network() -> Network:
    """Two inputs and three outputs, of which "features" is also read by another layer."""
    net = Network("several", {"picture": (6, 5, 3), "place": (4,)})
    net.add("conv", ops.Conv2D(8, 3), "picture")
    net.add("conv_relu", ops.ReLU())
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("both", ops.Concatenate(), "pool", "place")
    net.add("features", Dense(17))
    net.add("relu", ops.ReLU())
    net.add("logits", Dense(3))
    net.add("kind", Softmax())
    net.add("tag_logits", Dense(2), "relu")
    net.add("tags", ops.Sigmoid())
    net.outputs = ("kind", "tags", "features")
    return net


LOSSES = {"kind": SoftmaxCrossEntropy(), "tags": ops.BinaryCrossentropy(), "features": MeanSquaredError()}
WEIGHTS = {"kind": 1.0, "tags": 0.5, "features": 0.1}


def both_examples(n: int = 11, seed: int = 0) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    x = {"picture": rng.standard_normal((n, 6, 5, 3)), "place": rng.standard_normal((n, 4))}
    kind = rng.integers(0, 3, n)
    x["picture"][np.arange(n), :, :, kind] += 1
    y = {"kind": kind, "tags": (x["place"][:, :2] > 0).astype(float), "features": rng.standard_normal((n, 17))}
    return {name: array.astype(np.float32) for name, array in x.items()}, y


def compiled(optimizer=None, **settings) -> Model:
    return Model(network()).compile(optimizer or SGD(0.1), LOSSES, loss_weights=WEIGHTS, **settings)


def reference(weights: dict, x: dict, y: dict) -> dict[str, float]:
    """The losses in float64, from the outputs that the layers' references give."""
    net, values = network(), {name: array.astype(np.float64) for name, array in x.items()}
    for node in net.nodes.values():
        own = {p.role: weights[p.name].astype(np.float64) for p in net.parameters.values() if p.layer == node.name}
        values[node.name] = node.op.reference_forward([values[i] for i in node.inputs], own)
    losses = {
        "kind_loss": LOSSES["kind"].reference(values["logits"], y["kind"])[0].mean(),
        "tags_loss": LOSSES["tags"].reference(values["tag_logits"], y["tags"])[0].mean(),
        "features_loss": LOSSES["features"].reference(values["features"], y["features"])[0].mean(),
    }
    return {"loss": sum(w * losses[f"{name}_loss"] for name, w in WEIGHTS.items()), **losses}


def test_losses_and_gradients_add_up():
    """Against float64, differences, and other sizes of micro-batches."""
    x, y = both_examples()
    model = compiled()
    logs = model.evaluate(x, y, 4)
    expected = reference(model.weights, x, y)
    assert {name: logs[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert logs.keys() == {*expected, "kind_accuracy", "tags_accuracy"}
    gradients = model.gradients(x, y, 4)
    for name, place in (("conv/kernel", (1, 1, 2, 3)), ("features/kernel", (9, 4)), ("tag_logits/bias", (1,))):
        moved = []
        for sign in (1, -1):
            weights = {key: array.astype(np.float64) for key, array in model.weights.items()}
            weights[name][place] += sign * 1e-5
            moved.append(reference(weights, x, y)["loss"])
        assert gradients[name][place] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-3, abs=1e-5)
    whole = model.gradients(x, y)
    assert all(np.allclose(gradients[name], whole[name], atol=1e-6) for name in whole)
    assert model.train_on_batch(x, y)["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_lists_are_in_order():
    x, y = both_examples()
    one, other = compiled(), compiled()
    one.fit(x, y, 4, 2)
    other.compile(SGD(0.1), list(LOSSES.values()), loss_weights=list(WEIGHTS.values()))
    history = other.fit(list(x.values()), list(y.values()), 4, 2, validation_data=(x, y)).history
    assert same(one.weights, other.weights)
    outputs = other.predict(list(x.values()), 4)
    assert {name: array.shape for name, array in outputs.items()} == {
        "kind": (11, 3),
        "tags": (11, 2),
        "features": (11, 17),
    }
    assert outputs["kind"].sum(1) == pytest.approx(np.ones(11), abs=1e-6)
    accuracy = (outputs["kind"].argmax(1) == y["kind"]).mean()
    assert history["val_kind_accuracy"][-1] == pytest.approx(accuracy)
    assert {"loss", "kind_loss", "tags_accuracy", "features_loss"} <= history.keys()


def test_an_output_without_a_loss():
    x, y = both_examples()
    del y["features"]
    model = Model(network()).compile(SGD(0.1), {"kind": SoftmaxCrossEntropy(), "tags": ops.BinaryCrossentropy()})
    before = model.evaluate(x, y)["loss"]
    model.fit(x, y, 11, 20)
    assert model.evaluate(x, y)["loss"] < before
    assert model.predict(x)["features"].shape == (11, 17)


def test_learned_and_continued(tmp_path):
    """Twenty epochs are the same bits as ten, a file, and ten more."""
    x, y = both_examples(24)
    whole, first = compiled(ops.Adam(0.01)), compiled(ops.Adam(0.01))
    before = whole.evaluate(x, y)
    whole.fit(x, y, 8, 20, micro_batch=3)
    assert whole.evaluate(x, y)["loss"] < 0.8 * before["loss"]
    first.fit(x, y, 8, 10, micro_batch=3)
    first.save(tmp_path / "model.safetensors")
    again = el.load(tmp_path / "model.safetensors", optimizer=ops.Adam(0.01), loss=LOSSES, loss_weights=WEIGHTS)
    assert (again.network.inputs, again.network.outputs) == (first.network.inputs, first.network.outputs)
    again.fit(x, y, 8, 20, micro_batch=3)
    assert same(again.weights, whole.weights)


@pytest.mark.parametrize("policy", [policies.checkpoints, policies.paged])
def test_activation_memory_changes_no_bit(policy):
    x, y = both_examples()
    plain, other = compiled(), compiled(activation_memory=policy)
    plain.fit(x, y, 11, 3)
    other.fit(x, y, 11, 3)
    assert same(plain.weights, other.weights)
    assert el.explain(other.plan(8)).accounting is not None


@pytest.mark.parametrize("simulated", [True, False])
def test_integers(simulated):
    x, y = both_examples(24)
    eight = Precision(ops.Format(8, symmetric=True), ops.Format(8), ops.Format(8), simulated=simulated)
    model = compiled(precision=eight)
    losses = model.fit(x, y, 8, 10, micro_batch=4).history["loss"]
    plain = compiled().fit(x, y, 8, 10, micro_batch=4).history["loss"]
    assert losses[-1] == pytest.approx(plain[-1], rel=0.1)
    assert {name: output.dtype for name, output in model.predict(x).items()} == dict.fromkeys(LOSSES, np.float32)


def test_a_budget():
    x, y = both_examples()
    model = compiled()
    needed = model.plan(8).peak_bytes
    with pytest.raises(PlanError):
        model.plan(8, budget=needed // 20)
    model.fit(x, y, 8, 1, budget=needed)


def test_frozen_features_from_all_inputs():
    x, y = both_examples()
    cached, plain = compiled(), compiled()
    for model in (cached, plain):
        model.network.freeze("conv")
    plain.fit(x, y, 4, 2, validation_data=(x, y))
    history = cached.fit(x, y, 4, 2, cache="fp32", validation_data=(x, y)).history
    for name, array in plain.weights.items():
        np.testing.assert_allclose(cached.weights[name], array, atol=1e-6)
    assert history["val_loss"][-1] == pytest.approx(plain.evaluate(x, y)["loss"], rel=1e-5)


def test_a_source_for_an_input():
    x, y = both_examples()
    pictures = (x["picture"] * 20).astype(np.uint8)
    source = VariedSource(pictures, lambda some, indices, epoch: some, lambda some: some.astype(np.float32) / 20)
    one, other = compiled(), compiled()
    one.fit({"picture": source, "place": x["place"]}, y, 4, 2)
    other.fit({"picture": pictures.astype(np.float32) / 20, "place": x["place"]}, y, 4, 2)
    assert same(one.weights, other.weights)
    with pytest.raises(PlanError, match="cache"):
        one.fit({"picture": source, "place": x["place"]}, y, 4, 3, cache="fp32")


def test_weights_by_output():
    x, y = both_examples()
    zero = {"kind": np.zeros(11), "tags": np.ones(11), "features": np.zeros(11)}
    logs, plain = compiled().evaluate(x, y, sample_weight=zero), compiled().evaluate(x, y)
    assert logs["loss"] == pytest.approx(0.5 * plain["tags_loss"], rel=1e-5)
    gradients = compiled().gradients(x, y, sample_weight=zero)
    assert not gradients["logits/kernel"].any() and gradients["tag_logits/kernel"].any()
    with pytest.raises(PlanError, match="class_weight"):
        compiled().fit(x, y, class_weight={0: 1.0})


def test_metrics_by_output():
    x, y = both_examples()
    model = compiled(metrics={"kind": ["accuracy", "confusion_matrix"], "features": "mae"})
    logs = model.evaluate(x, y, 4)
    assert logs["kind_confusion_matrix"].sum() == 11
    outputs = model.predict(x)
    assert logs["features_mean_absolute_error"] == pytest.approx(np.abs(outputs["features"] - y["features"]).mean())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda x, y: (x["picture"], y), "picture, place"),
        (lambda x, y: ({"picture": x["picture"]}, y), "picture, place"),
        (lambda x, y: (x | {"place": x["place"][:5]}, y), "5 of 'place'"),
        (lambda x, y: (x | {"place": x["place"][:, :3]}, y), "'place'"),
        (lambda x, y: (x, y["kind"]), "kind, tags, features"),
        (lambda x, y: (x, {"kind": y["kind"], "tags": y["tags"]}), "'features'"),
        (lambda x, y: (x, y | {"other": y["kind"]}), "'other'"),
    ],
)
def test_bad_examples(change, word):
    with pytest.raises(ShapeError, match=word):
        compiled().fit(*change(*both_examples()))


@pytest.mark.parametrize(
    "losses",
    [{"other": SoftmaxCrossEntropy()}, [SoftmaxCrossEntropy()], {"kind": "mse!"}, {"kind": None, "tags": None}],
)
def test_bad_losses(losses):
    with pytest.raises(PlanError):
        Model(network()).compile(SGD(0.1), losses)


def test_bad_weights_of_losses():
    for weights in ({"other": 1.0}, {"kind": -1.0}, [1.0]):
        with pytest.raises(PlanError):
            Model(network()).compile(SGD(0.1), LOSSES, loss_weights=weights)
    assert ops.Losses(LOSSES, {"kind": 2}).weight("kind") == 2.0


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgelearn-prefetch")]


def test_order():
    assert list(ahead(range(20), lambda key: key * key)) == [(key, key * key) for key in range(20)]
    assert list(ahead([], str)) == []
    assert list(ahead([7], str)) == [(7, "7")]
    assert not threads()


def test_one_is_made_while_one_is_used():
    made = []
    with closing(ahead(range(10), made.append)) as items:
        next(items)
        until = time.monotonic() + 5
        while made != [0, 1] and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert made == [0, 1]  # the next one is, and no more


def test_made_on_another_thread():
    (_, name), *_ = ahead([1, 2], lambda key: threading.current_thread().name)
    assert name.startswith("edgelearn-prefetch")


def test_a_single_key_needs_no_thread():
    assert list(ahead([1], lambda key: threading.current_thread())) == [(1, threading.current_thread())]


def failing(keys, at: int):
    for key in keys:
        if key == at:
            raise ValueError(f"key {at}")
        yield key


def test_errors_come_out_in_their_turn():
    items = ahead(range(5), lambda key: next(failing([key], 2)))
    assert [next(items), next(items)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="key 2"):
        next(items)
    assert not threads()


def test_an_error_of_the_keys_comes_out():
    with pytest.raises(ValueError, match="key 2"):
        list(ahead(failing(range(5), 2), str))
    assert not threads()


def test_closing_early_leaves_no_thread():
    items = ahead(range(1000), lambda key: time.sleep(0.01))
    next(items)
    start = time.monotonic()
    items.close()
    assert time.monotonic() - start < 1
    assert not threads()


def test_leaving_a_loop_leaves_no_thread():
    def use():
        for key, _ in ahead(range(1000), str):
            if key == 3:
                raise RuntimeError("the user's")

    with pytest.raises(RuntimeError):
        use()
    assert not threads()


def test_predicting_streams():
    """Batches of examples alone, with targets, of a generator, and of two inputs, give the predictions of arrays."""
    x, y = examples(21)
    model = Model(toy_network(), seed=1)
    parts = [slice(0, 8), slice(8, 16), slice(16, 21)]
    for stream in (
        (x[part] for part in parts), lambda: ((x[part], y[part]) for part in parts), iter([(x, y)]),
        (x[part] for part in [*parts, slice(0, 5)]),
    ):  # fmt: skip
        np.testing.assert_array_equal(model.predict(stream, steps=3), model.predict(x))
    assert len(model.predict((x[part] for part in parts), steps=2)) == 16
    with pytest.raises(DataError, match="no batches"):
        model.predict(iter([]))
    with pytest.raises(PlanError, match="Steps are for"):
        model.predict(x, steps=1)


def test_a_trainer_takes_streams():
    """Regrouped to the plan's mini-batches: the same updates as from arrays in this order."""
    x, y = examples(20)
    found = []
    for stream in (False, True):
        model = Model(toy_network(), seed=1).compile(SGD(0.1), batchnorm="moving")
        with model.trainer(8, 4, examples=(20,)) as trainer:
            batches = lambda: ((x[i : i + 5], y[i : i + 5]) for i in range(0, 20, 5))  # noqa: E731
            data = {"x": batches, "validation_data": batches} if stream else {"x": x, "y": y, "validation_data": (x, y)}
            history = trainer.fit(**data, epochs=2, shuffle=False).history
            found.append((trainer.weights, history["loss"], history["val_loss"], trainer.predict(iter([x[:8]]))))
    assert all(np.array_equal(array, found[1][0][name]) for name, array in found[0][0].items())
    assert found[0][1:3] == found[1][1:3]
    assert np.array_equal(found[0][3], found[1][3])


def test_mini_batches_cover_the_order():
    order = np.random.default_rng(0).permutation(10)
    batches = list(mini_batches(order, 4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert (np.concatenate(batches) == order).all()
    assert list(mini_batches(order[:0], 4)) == []
    with pytest.raises(DataError, match=r"batch_size=0"):
        list(mini_batches(order, 0))
