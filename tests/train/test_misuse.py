"""What users get wrong is refused with the name of what is wrong, not with Python's own errors."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.compile import Recompute
from edgelearn.errors import DeviceError, EdgelearnError, FormatError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Adam, Conv2D, Dense, Format, ReLU
from edgelearn.train import Callback, CosineDecay, ExponentialDecay, History, Model, PiecewiseConstantDecay

from .toys import SHAPE, examples, frozen_stem, same, toy_network


@pytest.fixture(scope="module")
def data():
    return examples(10)


@pytest.fixture(scope="module")
def model():
    return Model(toy_network()).compile(SGD(0.1))


def toy(**weights) -> Model:
    net = toy_network()
    return Model(net, net.initialize(0) | weights)


def headless() -> Network:
    net = Network("headless", SHAPE)
    net.add("conv", Conv2D(3, 1))
    return net


FIT = [
    ({"batch_size": "4"}, "batch_size.*'4'"),
    ({"batch_size": True}, "batch_size"),
    ({"batch_size": 0}, "1"),
    ({"batch_size": 2.5}, "2.5"),
    ({"epochs": 1.5}, "epochs.*1.5"),
    ({"epochs": "2"}, "epochs.*'2'"),
    ({"epochs": None}, "epochs"),
    ({"epochs": 0}, "1"),
    ({"micro_batch": "2"}, "micro_batch"),
    ({"micro_batch": 0}, "1"),
    ({"batch_size": 4, "micro_batch": 5}, "5.*4"),
    ({"validation_frequency": 1.5}, "validation_frequency"),
    ({"validation_frequency": 0}, "1"),
    ({"validation_data": ([[0]],)}, r"\(x, y\)"),
    ({"validation_data": 3}, r"\(x, y\)"),
    *(({"validation_split": share}, "validation_split") for share in (-0.1, 1.0, "0.1", 0.95)),
    ({"validation_split": 0.5, "validation_data": examples(2)}, "validation_split"),
    ({"callbacks": 3}, "Callback"),
    ({"callbacks": [History]}, "Callback"),
    ({"verbose": "yes"}, "verbose"),
    ({"cache": "fp8"}, "'fp32' or 'fp16' or None, not 'fp8'"),
    ({"cache": "fp32"}, "no frozen prefix"),
]
COMPILE = [
    ({"loss": 0.1}, r"label_smoothing=0.1.* not 0.1"),
    ({"batchnorm": "kept"}, "'kept'"),
    ({"optimizer": "ftrl"}, r"such as SGD\(0.01\).* not 'ftrl'"),
    ({"optimizer": SGD}, r"such as SGD\(0.01\)"),
    ({"loss": "hinge"}, "'hinge'"),
    ({"precision": "int9"}, "fp32, fp16, int8 or a Precision, not 'int9'"),
    ({"metrics": np.ones(3)}, "A metric is a name"),
    ({"activation_memory": {"stem": Recompute()}}, "activation_memory"),
]
CALLS = [
    (lambda: Adam(-1), PlanError, "learning_rate.*at least 0, not -1"),
    (lambda: SGD(float("nan")), PlanError, "learning_rate"),
    (lambda: SGD(10**400), PlanError, "learning_rate"),
    (lambda: Adam(lr=0.1), PlanError, "Adam has no argument lr: it is learning_rate"),
    (lambda: Conv2D(4, 3, activation="relu"), ShapeError, "activation is a layer of its own"),
    (lambda: Conv2D(4, 3, stride=2), ShapeError, "did you mean strides"),
    (lambda: Dense(4, foo=3), ShapeError, "there are units, use_bias"),
    (lambda: Network("n", (8, 8, 3)).add(Conv2D(4, 3)), ShapeError, r"add\('conv2d', Conv2D"),
    (lambda: Network("n", (8, 8, 3)).add("conv", Conv2D), ShapeError, r"add\('conv2d', Conv2D"),
    (lambda: Network("n", (8,)).add("a", Dense(2), Dense(3)), ShapeError, "by their names, not Dense"),
    (lambda: Network("n", (8, 8, 3)).add("a", Conv2D(2, 3, padding="some")), ShapeError, "'some'"),
    *((lambda seed=seed: Model(toy_network(), seed=seed), PlanError, repr(seed)) for seed in (-1, 1 << 64, 1.5, "1")),
    *((lambda odd=odd: Model(toy_network(), device=odd), DeviceError, "list_devices") for odd in (-1, 0, [])),
    (lambda: Model(toy_network(), device="abacus"), DeviceError, "called 'abacus'"),
    (
        lambda: Model(toy_network(), {n: a for n, a in toy().weights.items() if "dense" not in n}), FormatError,
        "lack 'dense/kernel' and 1 more",
    ),
    (lambda: toy(**{"dense/bias": np.zeros(4)}), FormatError, "'dense/bias' has shape"),
    (lambda: toy(**{"dense/bias": np.full(3, np.nan)}), FormatError, "'dense/bias' holds a NaN"),
    (lambda: Model(toy_network().freeze()).compile(SGD(0.1)).fit(*examples(4)), PlanError, "Nothing to train"),
    (lambda: Model(headless()).fit(*examples(4)), ShapeError, "Dense"),
    *(
        (lambda rate=rate: toy().compile(SGD(lambda step: rate)).fit(*examples(4)), PlanError, "update 1 has")
        for rate in (float("nan"), float("inf"), -0.1)
    ),
    (
        lambda: toy().compile(SGD(), precision=el.Precision(weights=Format(8))).plan(4, cache="fp32"), PlanError,
        "cache",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "named"), FIT)
def test_fit(model, data, arguments, named):
    before = model.weights
    with pytest.raises((PlanError, ShapeError), match=named):
        model.fit(*(each[:2] for each in data) if "validation_split" in arguments else data, **arguments)
    assert same(model.weights, before)


@pytest.mark.parametrize(("arguments", "named"), COMPILE)
def test_compile(model, arguments, named):
    with pytest.raises(PlanError, match=named):
        model.compile(**{"optimizer": SGD()} | arguments)


@pytest.mark.parametrize(("call", "error", "named"), CALLS)
def test_calls_that_name_what_is_wrong(call, error, named):
    with pytest.raises(error, match=named):
        call()


def test_a_network_without_a_head_predicts(data):
    assert Model(headless()).predict(data[0]).shape == (10, 6, 6, 3)


def test_padding_in_upper_case_is_kerass():
    network = Network("n", (8, 8, 3))
    network.add("conv", Conv2D(4, 3, padding="Same"))
    assert network.output.shape == (8, 8, 4) and network.output.op == Conv2D(4, 3, padding="same")
    assert Network.from_json(network.to_json()).output.op.padding == "same"


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
        lambda m, x, y: Network("n", 3),
        lambda m, x, y: Network("n", (3,)).add("relu", "relu"),
        lambda m, x, y: Network("n", (3,)).add("relu", ReLU),
        lambda m, x, y: Network("n", (3,)).add(3, Dense(3)),
    ],
)
def test_calls(model, data, call):
    with pytest.raises(EdgelearnError):
        call(model, *data)


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
