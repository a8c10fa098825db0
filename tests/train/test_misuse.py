"""What users get wrong is refused with the name of what is wrong, not with Python's own errors."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import DeviceError, EdgelearnError, FormatError, PlanError, ShapeError
from edgelearn.ops import SGD, Adam, Conv2D, Dense, ReLU
from edgelearn.train import Callback, CosineDecay, ExponentialDecay, History, Model, PiecewiseConstantDecay

from .toys import examples, frozen_stem, same, toy_network


@pytest.fixture(scope="module")
def data():
    return examples(10)


@pytest.fixture(scope="module")
def model():
    return Model(toy_network()).compile(SGD(0.1))


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"batch_size": "4"}, PlanError, "batch_size.*'4'"),
        ({"batch_size": True}, PlanError, "batch_size"),
        ({"epochs": 1.5}, PlanError, "epochs.*1.5"),
        ({"epochs": "2"}, PlanError, "epochs.*'2'"),
        ({"epochs": None}, PlanError, "epochs"),
        ({"micro_batch": "2"}, PlanError, "micro_batch"),
        ({"validation_frequency": 1.5}, PlanError, "validation_frequency"),
        ({"validation_data": ([[0]],)}, ShapeError, r"\(x, y\)"),
        ({"validation_data": 3}, ShapeError, r"\(x, y\)"),
        ({"callbacks": 3}, PlanError, "Callback"),
        ({"callbacks": [History]}, PlanError, "Callback"),
    ],
)
def test_fit(model, data, arguments, error, named):
    with pytest.raises(error, match=named):
        model.fit(*data, **arguments)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: Adam(-1), PlanError, "learning_rate.*at least 0, not -1"),
        (lambda: SGD(float("nan")), PlanError, "learning_rate"),
        (lambda: SGD(10**400), PlanError, "learning_rate"),
        (lambda: Adam(lr=0.1), PlanError, "Adam has no argument lr: it is learning_rate"),
        (lambda: Conv2D(4, 3, activation="relu"), ShapeError, "activation is a layer of its own"),
        (lambda: Conv2D(4, 3, stride=2), ShapeError, "did you mean strides"),
        (lambda: Dense(4, foo=3), ShapeError, "there are units, use_bias"),
        (lambda: el.Network("n", (8, 8, 3)).add(Conv2D(4, 3)), ShapeError, r"add\('conv2d', Conv2D"),
        (lambda: el.Network("n", (8, 8, 3)).add("conv", Conv2D), ShapeError, r"add\('conv2d', Conv2D"),
        (lambda: el.Network("n", (8,)).add("a", Dense(2), Dense(3)), ShapeError, "by their names, not Dense"),
        (lambda: el.Network("n", (8, 8, 3)).add("a", Conv2D(2, 3, padding="some")), ShapeError, "'some'"),
        (lambda: Model(toy_network()).compile("adam", metrics=np.ones(3)), PlanError, "A metric is a name"),
    ],
)
def test_arguments_of_layers_and_optimizers(make, error, named):
    with pytest.raises(error, match=named):
        make()


def test_padding_in_upper_case_is_kerass():
    network = el.Network("n", (8, 8, 3))
    network.add("conv", Conv2D(4, 3, padding="Same"))
    assert network.output.shape == (8, 8, 4) and network.output.op == Conv2D(4, 3, padding="same")
    assert el.Network.from_json(network.to_json()).output.op.padding == "same"


def test_metrics_that_return_arrays(data):
    model = Model(toy_network()).compile(SGD(0.1), metrics=[lambda y_true, y_pred: y_true == y_pred.argmax(-1)])
    with pytest.raises(PlanError, match=r"returned bool of shape \(10,\): a function returns one number"):
        model.evaluate(*data)


def test_none_is_kerass_batch_size(data):
    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(*data, batch_size=None, callbacks=None)
    assert model.position.updates == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x, y: m.evaluate(x, y, "4"),
        lambda m, x, y: m.predict(x, 0),
        lambda m, x, y: m.predict([[1, 2], [3]]),
        lambda m, x, y: m.fit(x, None),
        lambda m, x, y: m.plan(None),
        lambda m, x, y: m.trainer("3"),
        lambda m, x, y: Model("mobilenet_v1"),
        lambda m, x, y: Model(toy_network(), share_with=3),
        lambda m, x, y: setattr(m, "weights", None),
        lambda m, x, y: SGD(momentum="0.9"),
        lambda m, x, y: SGD(None),
        lambda m, x, y: SGD(1j),
        lambda m, x, y: Adam(beta_1=None),
        lambda m, x, y: CosineDecay("0.1", 10),
        lambda m, x, y: ExponentialDecay(0.1, 10, "3"),
        lambda m, x, y: PiecewiseConstantDecay(3, 4),
        lambda m, x, y: el.Network("n", 3),
        lambda m, x, y: el.Network("n", (3,)).add("relu", "relu"),
        lambda m, x, y: el.Network("n", (3,)).add("relu", ReLU),
        lambda m, x, y: el.Network("n", (3,)).add(3, Dense(3)),
    ],
)
def test_calls(model, data, call):
    with pytest.raises(EdgelearnError):
        call(model, *data)


@pytest.mark.parametrize("device", (-1, 0, []))
def test_devices(device):
    with pytest.raises(DeviceError, match="list_devices"):
        Model(toy_network(), device=device)


@pytest.mark.parametrize("kind", (complex, str, "datetime64[s]"))
def test_weights_that_are_no_numbers(model, kind):
    weights = {name: np.zeros(array.shape).astype(kind) for name, array in model.weights.items()}
    with pytest.raises(FormatError, match="stem/kernel"):
        Model(toy_network(), weights)


def test_edits_of_weights_are_refused(model):
    weights = model.weights
    with pytest.raises(ValueError, match="read-only"):
        weights["dense/bias"][:] = 1
    for edit in (lambda: weights.update(a=1), lambda: weights.pop("dense/bias"), weights.clear):
        with pytest.raises(FormatError, match=r"model\.weights ="):
            edit()
    with pytest.raises(FormatError, match=r"model\.weights ="):
        weights["dense/bias"] = np.ones(3)
    changed = weights | {"dense/bias": np.ones(3, np.float32)}
    changed["dense/bias"][:] = 2
    assert same(weights, model.weights)


def test_a_model_has_weights_of_its_own():
    given = {name: np.zeros_like(array) for name, array in Model(toy_network()).weights.items()}
    model = Model(toy_network(), given)
    given["dense/bias"][:] = 5
    assert not model.weights["dense/bias"].any()
    model.weights = given
    given["dense/bias"][:] = 6
    assert (model.weights["dense/bias"] == 5).all()


@pytest.mark.parametrize("cache", (None, "fp32"))
def test_weights_in_a_callback_are_those_of_now(data, cache):
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, batch, logs):
            seen.append(self.model.weights)

        def on_epoch_end(self, epoch, logs):
            seen.append(self.model.weights)

    model = Model(frozen_stem()).compile(SGD(0.1), batchnorm="moving")
    before = model.weights
    model.fit(*data, 5, 2, callbacks=[Look()], cache=cache)
    apart = [float(np.abs(weights["dense/bias"] - before["dense/bias"]).max()) for weights in seen]
    assert len(set(apart)) == 4 and apart[1] == apart[2] and apart[4] == apart[5]
    assert same(seen[-1], model.weights) and not same(seen[0], before)
