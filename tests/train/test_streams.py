"""Batches with their labels: loaders and generators train as arrays do."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import DataError, PlanError, ShapeError
from edgelearn.ops import SGD, Add, Dense
from edgelearn.train import Callback, Model

from .toys import examples, same, toy_network

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
    network.add("sum", Add(), "a", "b")
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
