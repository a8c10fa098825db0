"""fit, evaluate, predict and plan, on the machine's best device."""

import json
import re

import numpy as np
import pytest

from edgelearn.display import megabytes
from edgelearn.errors import DataError, DeviceError, FormatError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, Adam, Conv2D, Dense, Dropout, Flatten, GlobalAveragePooling2D, SoftmaxCrossEntropy
from edgelearn.train import Callback, Model

from .toys import CLASSES, SHAPE, Log, StopAfter, examples, frozen_stem, same, toy_network, weights_after


@pytest.fixture
def data():
    return examples(30)


@pytest.fixture
def model():
    return Model(frozen_stem(), seed=1).compile(SGD(0.1, momentum=0.9), batchnorm="moving")


def test_learns(data):
    model = Model(toy_network()).compile(Adam(0.01), batchnorm="batch")
    history = model.fit(*data, 10, 15).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert model.evaluate(*examples(60, seed=5))["accuracy"] > 0.8


def test_history_is_what_happened(model, data):
    x, y = data
    history = model.fit(x, y, 8, 3, validation_data=examples(7, seed=2), validation_frequency=2)
    assert history.epoch == [0, 1, 2]
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy", "seconds"}
    assert len(history.history["loss"]) == 3
    assert len(history.history["val_loss"]) == 2  # after the second epoch, and the last
    assert history.history["val_loss"][-1] == pytest.approx(model.evaluate(*examples(7, seed=2))["loss"], rel=1e-6)


def test_evaluate_and_predict_agree_with_the_definition(model, data):
    x, y = data
    shares = model.predict(x, 7)
    assert shares.shape == (30, CLASSES) and shares.dtype == np.float32
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    found = model.evaluate(x, y, 4)
    assert found["accuracy"] == pytest.approx((shares.argmax(-1) == y).mean())
    assert found["loss"] == pytest.approx(-np.log(shares[np.arange(30), y]).mean(), rel=1e-5)
    np.testing.assert_array_equal(model.predict(x, 30), shares)


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, "1"])
def test_seeds_that_are_none(seed):
    with pytest.raises(PlanError, match=re.escape(repr(seed))):
        Model(toy_network(), seed=seed)


def test_label_smoothing(data):
    x, y = data
    model = Model(toy_network()).compile(SGD(0.0), SoftmaxCrossEntropy(label_smoothing=0.2), batchnorm="moving")
    losses, _ = SoftmaxCrossEntropy(0.2).reference(np.log(np.float64(model.predict(x))), y)
    assert model.evaluate(x, y)["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    history = model.fit(x, y, 8, validation_data=(x, y)).history
    assert history["loss"] == pytest.approx([losses.mean()], rel=1e-5)
    assert history["val_loss"] == pytest.approx([losses.mean()], rel=1e-5)


def test_the_order_follows_from_the_seed():
    def trained(seed, **options):
        weights = toy_network().initialize(0)
        return weights_after(Model(toy_network(), weights, seed=seed).compile(SGD(0.1)), **options)

    assert same(trained(0), trained(0))
    assert not same(trained(0), trained(1))
    assert same(trained(0, shuffle=False), trained(1, shuffle=False))


def test_dropout_follows_from_the_seed():
    def trained(seed):
        weights = toy_network(dropout=0.5).initialize(0)
        model = Model(toy_network(dropout=0.5), weights, seed=seed).compile(SGD(0.1))
        return weights_after(model, shuffle=False)

    assert same(trained(0), trained(0))
    assert not same(trained(0), trained(1))


@pytest.mark.parametrize("micro_batch", [1, 3, 30])
def test_micro_batches_give_the_mini_batchs_update(data, micro_batch):
    whole, parts = (Model(toy_network(), seed=3).compile(SGD(0.5), batchnorm="moving") for _ in range(2))
    whole.fit(*data, 15, 1)
    parts.fit(*data, 15, 1, micro_batch=min(micro_batch, 15))
    for name, array in whole.weights.items():
        np.testing.assert_allclose(parts.weights[name], array, rtol=1e-4, atol=1e-6)


def test_kept_statistics_and_frozen_layers_stay(model, data):
    before = model.weights
    model.fit(*data, 10)
    changed = {name for name in before if not np.array_equal(before[name], model.weights[name])}
    assert changed == model.network.trainable


def test_batch_statistics_move(data):
    model = Model(toy_network()).compile(SGD(0.0), batchnorm="batch")
    x, y = data
    model.fit(x, y, 30, shuffle=False)
    kernel = np.float64(model.weights["stem/kernel"])
    padded = np.pad(np.float64(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    before_norm = np.einsum("nhwcij,ijco->nhwo", windows, kernel)
    np.testing.assert_allclose(
        model.weights["stem_bn/moving_mean"], 0.1 * before_norm.mean((0, 1, 2)), rtol=1e-3, atol=1e-5
    )
    moved = 0.9 + 0.1 * before_norm.var((0, 1, 2), ddof=0)
    np.testing.assert_allclose(model.weights["stem_bn/moving_variance"], moved, rtol=2e-3)


@pytest.mark.usefixtures("own_kernels")
def test_callbacks_in_order(data):
    model = Model(frozen_stem()).compile(SGD(0.1))
    log = Log()
    x, y = data
    model.fit(x, y, 16, 2, validation_data=(x[:4], y[:4]), callbacks=[log], cache="fp32")
    names = [name for name in log.names() if name != "on_compile"]
    epoch = ["on_epoch_begin", "on_train_batch_end", "on_train_batch_end", "on_epoch_end"]
    assert names == ["on_extract"] * 3 + ["on_train_begin", *epoch, *epoch, "on_train_end"]
    assert [call[1:] for call in log.calls if call[0] == "on_extract"] == [(16, 34), (30, 34), (34, 34)]
    assert log.names()[0] == "on_compile"
    begin = next(call[1] for call in log.calls if call[0] == "on_train_begin")
    assert set(begin) == {"val_loss", "val_accuracy"}
    assert [call[1] for call in log.calls if call[0] == "on_train_batch_end"] == [0, 1, 0, 1]
    losses = [call[2]["loss"] for call in log.calls if call[0] == "on_train_batch_end"][:2]
    end = next(call[2] for call in log.calls if call[0] == "on_epoch_end")
    assert end["loss"] == pytest.approx((16 * losses[0] + 14 * losses[1]) / 30)


def test_callbacks_may_use_the_model():
    class Curious(Callback):
        def on_train_batch_end(self, batch, logs):
            self.model.evaluate(*examples(5))
            self.model.state()
            self.model.predict(examples(5)[0])

        on_epoch_end = on_train_batch_end

    def trained(callbacks):
        model = Model(frozen_stem()).compile(Adam(0.01), batchnorm="batch")
        return weights_after(model, callbacks=callbacks, cache="fp32")

    assert same(trained([Curious()]), trained([]))


def test_evaluate_between_two_fits_keeps_the_optimizers_state():
    def trained(between):
        model = Model(toy_network()).compile(SGD(0.1, momentum=0.9))
        weights_after(model, epochs=1)
        between(model)
        return weights_after(model, epochs=3)

    once = weights_after(Model(toy_network()).compile(SGD(0.1, momentum=0.9)), epochs=3)
    assert same(trained(lambda model: None), once)
    assert same(trained(lambda model: model.evaluate(*examples(5))), once)


def test_compile_starts_anew():
    model = Model(toy_network()).compile(SGD(0.1, momentum=0.9), batchnorm="batch")
    beginning = model.weights
    first = weights_after(model)
    model.compile(SGD(0.1, momentum=0.9), batchnorm="batch")
    model.weights = beginning
    assert same(weights_after(model), first)


def test_what_is_trained_may_change_between_fits(data):
    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(*data, 10, 1)
    before = model.weights
    model.network.freeze().unfreeze("dense")
    model.fit(*data, 10, 2)
    changed = {name for name in before if not np.array_equal(before[name], model.weights[name])}
    assert changed == {"dense/kernel", "dense/bias"}


def test_epochs_that_are_done_are_not_passed_over(data):
    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(*data, 10, 2)
    before = model.weights
    with pytest.raises(PlanError, match="2 epochs are done"):
        model.fit(*data, 10, 2)
    assert same(model.weights, before)
    model.fit(*data, 10, 3)
    assert model.position.updates == 9


@pytest.mark.parametrize(("count", "batch_size"), [(10, 3), (6, 4)])
def test_an_epoch_goes_on_with_what_it_began_with(count, batch_size):
    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(*examples(10), 4, 2, callbacks=[StopAfter(2)])
    with pytest.raises(PlanError, match=r"epoch 1.* 8 examples in 2 steps"):
        model.fit(*examples(count), batch_size, 2)
    model.fit(*examples(10), 4, 2)
    assert model.position.updates == 6


def test_assigned_weights_are_used(model, data):
    x, y = data
    model.evaluate(x, y)
    model.weights = {name: np.zeros_like(array) for name, array in model.weights.items()}
    np.testing.assert_allclose(model.predict(x), 1 / CLASSES)
    model.fit(x, y, 10)
    model.weights = {name: np.zeros_like(array) for name, array in model.weights.items()}
    np.testing.assert_allclose(model.predict(x), 1 / CLASSES)


@pytest.mark.parametrize("cache", [None, "fp32"])
@pytest.mark.parametrize("updates", [1, 2, 3, 4])
def test_stop_training_ends_at_a_step(model, updates, cache):
    log = Log()
    x, y = examples(10)
    model.fit(x, y, 4, 5, callbacks=[log, StopAfter(updates)], cache=cache)
    assert log.names().count("on_train_batch_end") == updates
    assert (model.position.epoch, model.position.step) == divmod(updates, 3)
    assert log.names().count("on_epoch_end") == updates // 3
    assert log.names()[-1] == "on_train_end"


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("moment", ["on_compile", "on_extract", "on_train_begin"])
def test_stop_training_before_the_first_step(data, moment):
    model = Model(frozen_stem()).compile(SGD(0.1))

    def stop(*arguments):
        model.stop_training = True

    log, stopper = Log(), Callback()
    setattr(stopper, moment, stop)
    before = model.weights
    history = model.fit(*data, 8, 3, callbacks=[log, stopper], cache="fp32")
    assert "on_train_batch_end" not in log.names() and not history.epoch
    assert log.names().count(moment) == 1 and log.names()[-1] == "on_train_end"
    assert same(model.weights, before) and model.position.updates == 0
    assert model.context.ledger.held == 0
    model.fit(*data, 8, 1, cache="fp32")  # asked to stop once, not for ever
    assert model.position.epoch == 1


def test_stop_training_while_the_beginning_is_evaluated(model):
    class Slow:
        shape = (10, *SHAPE)

        def __getitem__(self, indices):
            if 3 in indices:
                model.stop_training = True
            assert 9 not in indices  # the next one may be prepared already
            return examples(10)[0][indices]

        def __len__(self):
            return 10

    log = Log()
    x, y = examples(10)
    model.fit(x, y, 2, 3, validation_data=(Slow(), y), callbacks=[log])
    assert "on_train_begin" not in log.names() and log.names()[-1] == "on_train_end"
    assert model.position.updates == 0


@pytest.mark.parametrize("cache", [None, "fp32"])
def test_planned_bytes_are_the_bytes_held(model, data, cache):
    x, y = data
    phases = model.phases(12, 5, cache=cache)
    model.fit(x, y, 12, 2, micro_batch=5, validation_data=(x, y), cache=cache)
    assert model.context.ledger.peak == phases.peak_bytes
    assert model.context.ledger.held == 0
    model.evaluate(x, y)
    assert model.context.ledger.held == model.forward_plan().peak_bytes


def test_budget(model, data):
    needed = model.plan(12, 5).peak_bytes
    model.fit(*data, 12, micro_batch=5, budget=needed)
    before = model.context.ledger.peak
    with pytest.raises(
        PlanError, match=f"{re.escape(megabytes(needed))}.*{re.escape(megabytes(1000))}.*micro-batch of 1"
    ):
        model.fit(*data, 12, 2, micro_batch=5, budget="1 kB")
    assert model.context.ledger.peak == before
    least = model.forward_plan(1).peak_bytes
    assert model.forward_plan(budget=least).request.micro_batch == 1
    with pytest.raises(PlanError, match="over the budget"):
        model.forward_plan(budget=least - 1)


@pytest.mark.parametrize(
    ("x", "y", "problem"),
    [
        (np.zeros((0, *SHAPE)), np.zeros(0, int), "examples"),
        (np.zeros((4, 6, 5, 3)), np.zeros(4, int), r"shape \(6, 6, 3\), but these have \(6, 5, 3\)"),
        (np.zeros(SHAPE), np.zeros(6, int), r"these have \(6, 3\)"),
        (np.zeros(4), np.zeros(4, int), r"x\[None\]"),
        (np.full((4, *SHAPE), "1"), np.zeros(4, int), "<U1"),
        (np.zeros((4, *SHAPE)), np.zeros(5, int), r"labels of shape \(4,\)"),
        (np.zeros((4, *SHAPE)), np.zeros((4, 1), int), r"labels of shape \(4,\)"),
        (np.zeros((4, *SHAPE)), np.eye(4), "one-hot.*argmax"),
        (np.zeros((4, *SHAPE)), np.array([0.0, 0.5, 1.0, 2.0]), "float64"),
        (np.zeros((4, *SHAPE)), np.array([0, 1, 2, 3]), "0 to 2; found 0 to 3"),
        (np.zeros((4, *SHAPE)), np.array([0, 1, -1, 2]), "found -1 to 2"),
        (np.zeros((4, *SHAPE)), np.array([0, 1, 2, 1 << 32]), "found 0 to 4294967296"),
    ],
)
def test_examples_that_do_not_fit(model, x, y, problem):
    for use in (model.fit, model.evaluate):
        with pytest.raises(ShapeError, match=problem):
            use(x, y)
    good = np.zeros((4, *SHAPE)), np.zeros(4, int)
    with pytest.raises(ShapeError, match=problem):
        model.fit(*good, validation_data=(x, y))
    assert model.context.ledger.peak == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch_size": 0}, "1"),
        ({"epochs": 0}, "1"),
        ({"validation_frequency": 0}, "1"),
        ({"micro_batch": 0}, "1"),
        ({"batch_size": 2.5}, "2.5"),
        ({"batch_size": 4, "micro_batch": 5}, "5.*4"),
        ({"cache": "fp8"}, "'fp32' or 'fp16' or None, not 'fp8'"),
    ],
)
def test_settings_that_cannot_be(model, data, options, problem):
    with pytest.raises(PlanError, match=problem):
        model.fit(*data, **options)


def test_a_micro_batch_may_be_more_than_there_are(model):
    model.fit(*examples(5), 100, micro_batch=20)
    assert model.position.updates == 1


def test_numbers_of_numpy():
    """As in `classes=labels.max() + 1` and `batch_size=sizes[0]`."""
    x, y = examples(10)
    net = Network("n", SHAPE)
    net.add("flatten", Flatten())
    net.add("dropout", Dropout(np.float32(0.25)))
    net.add("dense", Dense(y.max() + 1))
    optimizer = Adam(np.float32(0.01), beta_1=np.float32(0.9))
    model = Model(net).compile(optimizer, SoftmaxCrossEntropy(np.float32(0.1)))
    assert len(model.fit(x, y, np.int64(4), np.int64(2), micro_batch=np.int64(2)).epoch) == 2
    assert model.predict(x, np.int64(3)).shape == (10, CLASSES)
    assert json.dumps(model.plan(np.int64(4)).to_dict())


def test_networks_that_cannot_be_trained(data):
    model = Model(toy_network().freeze()).compile(SGD(0.1))
    with pytest.raises(PlanError, match="Nothing to train"):
        model.fit(*data)
    model = Model(toy_network()).compile(SGD(0.1))
    with pytest.raises(PlanError, match="no frozen prefix"):
        model.fit(*data, cache="fp32")
    headless = Network("headless", SHAPE)
    headless.add("conv", Conv2D(3, 1))
    with pytest.raises(ShapeError, match="Dense"):
        Model(headless).fit(*data)
    assert Model(headless).predict(data[0]).shape == (30, 6, 6, 3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"loss": 0.1}, r"label_smoothing=0.1.* not 0.1"),
        ({"batchnorm": "kept"}, "'kept'"),
        ({"optimizer": "ftrl"}, r"such as SGD\(0.01\).* not 'ftrl'"),
        ({"loss": "hinge"}, "'hinge'"),
        ({"precision": "int8"}, "Precision.*'int8'"),
        ({"optimizer": SGD}, r"such as SGD\(0.01\)"),
    ],
)
def test_compile_refuses(model, settings, problem):
    with pytest.raises(PlanError, match=problem):
        model.compile(**{"optimizer": SGD()} | settings)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1])
def test_schedules_with_rates_that_cannot_be(data, rate):
    model = Model(toy_network()).compile(SGD(lambda step: rate))
    before = model.weights
    with pytest.raises(PlanError, match="update 1 has"):
        model.fit(*data)
    assert same(model.weights, before)


def test_weights_that_do_not_fit():
    net = toy_network()
    weights = net.initialize(0)
    with pytest.raises(FormatError, match="lack 'dense/kernel' and 1 more"):
        Model(net, {name: array for name, array in weights.items() if "dense" not in name})
    with pytest.raises(FormatError, match="'dense/bias' has shape"):
        Model(net, weights | {"dense/bias": np.zeros(4)})
    with pytest.raises(FormatError, match="'dense/bias' holds a NaN"):
        Model(net, weights | {"dense/bias": np.full(3, np.nan)})


def test_unknown_device_and_seed():
    with pytest.raises(DeviceError, match="called 'abacus'"):
        Model(toy_network(), device="abacus")
    with pytest.raises(PlanError, match="seed"):
        Model(toy_network(), seed=-1)


def test_an_error_in_reading_comes_out(model):
    class Broken:
        shape = (12, *SHAPE)

        def __len__(self):
            return 12

        def __getitem__(self, indices):
            if 7 in indices:
                raise DataError("picture 7 is gone")
            return np.zeros((len(indices), *SHAPE), np.float32)

    before = model.weights
    with pytest.raises(DataError, match="picture 7"):
        model.fit(Broken(), np.zeros(12, int), 12, micro_batch=2)
    assert same(model.weights, before)
    assert model.context.ledger.held == 0


def test_published_counts():
    net = mobilenet_v1(classes=5).freeze().unfreeze("conv_pw_13", "dense")
    text = Model(net, {name: np.zeros(p.weight.shape) for name, p in net.parameters.items()}).summary()
    assert "Total parameters: 3,233,989" in text
    assert "Trainable parameters: 1,053,701" in text
    assert "Non-trainable parameters: 2,180,288" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["conv_pw_13"].split()[-2:] == ["1,048,576", "trained"]
    assert rows["dense"].split()[-2:] == ["5,125", "trained"]
    assert rows["conv_pw_12"].split()[-1] == "frozen"
    assert "(None, 7, 7, 1024)" in rows["conv_pw_13"]


def test_a_mixed_layer_is_trained_where_a_part_is():
    net = Network("mixed", (4, 4, 3))
    net.add("conv", Conv2D(2, 1))
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(2))
    net.freeze().unfreeze("conv/bias")
    rows = Model(net).summary().splitlines()
    assert [row.split()[-1] for row in rows if row.startswith(("conv", "dense"))] == ["trained", "frozen"]


def test_a_layer_added_later_needs_another_model(data):
    network = toy_network()
    model = Model(network)
    model.predict(data[0])
    network.add("late", Dense(3))
    with pytest.raises(FormatError, match="'late/bias'"):
        model.predict(data[0])
    assert Model(network).predict(data[0]).shape[1:] == (3,)
