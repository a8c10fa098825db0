"""compile, fit, evaluate, predict and plan, on the machine's best device."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.compile import Compress, Offload, Precision, Recompute, account
from edgelearn.compile.policies import compressed, keep_all, paged
from edgelearn.display import megabytes
from edgelearn.errors import DataError, FormatError, NonFiniteError, PagingError, PlanError, ShapeError
from edgelearn.graph import Network
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD
from edgelearn.ops.quantize import FIELDS
from edgelearn.train import Callback, Model, ProgressBar, RangeTrace, TraceRanges, callbacks
from edgelearn.train.state import GROWTH, Position
from tests.train.toys import (
    CLASSES,
    INT8,
    SHAPE,
    Log,
    StopAfter,
    check_resumed,
    examples,
    frozen_stem,
    kept_and_new,
    moved,
    same,
    toy_network,
    weights_after,
)


@pytest.fixture
def data():
    return examples(30)


@pytest.fixture
def model():
    return Model(frozen_stem(), seed=1).compile(SGD(0.1, momentum=0.9), batchnorm="moving")


def test_learns(data):
    model = Model(toy_network()).compile(ops.Adam(0.01), batchnorm="batch")
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


def test_label_smoothing(data):
    x, y = data
    model = Model(toy_network()).compile(SGD(0.0), ops.SoftmaxCrossEntropy(label_smoothing=0.2), batchnorm="moving")
    losses, _ = ops.SoftmaxCrossEntropy(0.2).reference(np.log(np.float64(model.predict(x))), y)
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
        model = Model(frozen_stem()).compile(ops.Adam(0.01), batchnorm="batch")
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


def test_a_micro_batch_may_be_more_than_there_are(model):
    model.fit(*examples(5), 100, micro_batch=20)
    assert model.position.updates == 1


def test_numbers_of_numpy():
    """As in `classes=labels.max() + 1` and `batch_size=sizes[0]`."""
    x, y = examples(10)
    net = Network("n", SHAPE)
    net.add("flatten", ops.Flatten())
    net.add("dropout", ops.Dropout(np.float32(0.25)))
    net.add("dense", ops.Dense(y.max() + 1))
    optimizer = ops.Adam(np.float32(0.01), beta_1=np.float32(0.9))
    model = Model(net).compile(optimizer, ops.SoftmaxCrossEntropy(np.float32(0.1)))
    assert len(model.fit(x, y, np.int64(4), np.int64(2), micro_batch=np.int64(2)).epoch) == 2
    assert model.predict(x, np.int64(3)).shape == (10, CLASSES)
    assert json.dumps(model.plan(np.int64(4)).to_dict())


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
    net.add("conv", ops.Conv2D(2, 1))
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", ops.Dense(2))
    net.freeze().unfreeze("conv/bias")
    rows = Model(net).summary().splitlines()
    assert [row.split()[-1] for row in rows if row.startswith(("conv", "dense"))] == ["trained", "frozen"]


def test_a_layer_added_later_needs_another_model(data):
    network = toy_network()
    model = Model(network)
    model.predict(data[0])
    network.add("late", ops.Dense(3))
    with pytest.raises(FormatError, match="'late/bias'"):
        model.predict(data[0])
    assert Model(network).predict(data[0]).shape[1:] == (3,)


def trained(*arguments, **keywords):
    """(weights, history)"""
    model = Model(toy_network(), seed=3).compile(SGD(0.1))
    history = model.fit(*arguments, **keywords)
    return model.weights, history.history


@pytest.mark.parametrize("as_list", (False, True))
def test_validation_split_takes_the_last_examples(as_list):
    x, y = examples(10)

    class Source:
        shape = x.shape

        def __len__(self):
            return len(x)

        def __getitem__(self, indices):
            return x[indices]

    weights, history = trained(Source() if as_list else x, y, 4, 2, validation_split=0.3)
    expected, other = trained(x[:7], y[:7], 4, 2, validation_data=(x[7:], y[7:]))
    assert same(weights, expected) and history["val_loss"] == other["val_loss"]


@pytest.mark.parametrize(
    ("verbose", "terminal", "bars"),
    [("auto", True, [True]), ("auto", False, []), (0, True, []), (1, False, [True]), (2, False, [False])],
)
def test_a_bar_where_a_person_looks_on(monkeypatch, verbose, terminal, bars):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    found = [callback for callback in callbacks.with_progress([], verbose) if isinstance(callback, ProgressBar)]
    assert [bar.bar for bar in found] == bars
    own = ProgressBar(every=3)
    assert callbacks.with_progress([own], verbose) == [own]


def test_lines_alone_or_silence(capsys):
    trained(*examples(8), 4, 2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    log = Log()
    trained(*examples(8), 4, 2, verbose=0, callbacks=log)  # a single one, as Keras
    assert capsys.readouterr() == ("", "") and log.names()[-1] == "on_train_end"


@pytest.mark.usefixtures("own_kernels")
def test_a_notebook_shows_one_output_that_changes(monkeypatch):
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html.data)

    def display(html, display_id):
        shown.append(html.data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(callbacks, "in_notebook", lambda: True)
    trained(*examples(8), 4, 3, verbose=1)
    assert any("compiling kernels" in html for html in shown)
    assert shown[-1].count("</tr>") == 1 + 3 and "<progress" not in shown[-1]


@pytest.mark.parametrize("name", ("sgd", "adam", "AdamW", "rmsprop", "lion", "lamb"))
def test_optimizers_by_their_names(name):
    model = Model(toy_network()).compile(name, "sparse_categorical_crossentropy", metrics=["accuracy"])
    assert type(model.optimizer).__name__.lower() == name.lower()
    assert type(model.loss) is ops.SoftmaxCrossEntropy
    assert type(model.compile(name, "mse").loss) is ops.MeanSquaredError
    assert type(model.compile(name, {"softmax": "huber"}).loss) is ops.Losses


WAYS, SHOTS, QUERIES = 3, 2, 9


def embedding() -> Network:
    net = Network("embedding", SHAPE)
    net.add("conv", ops.Conv2D(16, 3))
    net.add("relu", ops.ReLU())
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("embedding", ops.Dense(12))
    return net


def episodes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Support, way after way, and queries behind it."""
    x, y = examples(60 * count)
    order = []
    for k in range(count):
        mine = np.arange(60 * k, 60 * (k + 1))
        support = [mine[y[mine] == way][:SHOTS] for way in range(WAYS)]
        order += [*np.concatenate(support), *np.setdiff1d(mine, np.concatenate(support))[:QUERIES]]
    return x[order], y[order]


def test_episodes_are_learned():
    x, y = episodes(6)
    size = WAYS * SHOTS + QUERIES
    model = Model(embedding()).compile(SGD(0.05), loss=ops.Prototypical(WAYS, SHOTS))
    before = model.evaluate(x, y, size)
    history = model.fit(x, y, 2 * size, 20, micro_batch=size, shuffle=False).history
    after = model.evaluate(x, y, size)
    assert history["loss"][0] == pytest.approx(before["loss"], rel=0.3)
    assert after["loss"] < 0.5 * before["loss"]
    assert after["accuracy"] > 0.9
    outputs = model.predict(x).astype(np.float64)
    parts = [slice(k, k + size) for k in range(0, len(x), size)]
    losses = [model.loss.reference(outputs[part], y[part])[0].mean() for part in parts]
    assert after["loss"] == pytest.approx(np.mean(losses), rel=1e-3)


def test_no_whole_episodes():
    x, y = episodes(2)
    model = Model(embedding()).compile(SGD(0.1), loss=ops.Prototypical(WAYS, SHOTS))
    assert model.predict(x).shape == (len(x), 12)
    for use in (lambda: model.fit(x, y, 6, shuffle=False), lambda: model.evaluate(x, y, 6)):
        with pytest.raises(PlanError, match="episodes"):
            use()
    with pytest.raises(PlanError, match="shuffle=False"):
        model.fit(x, y, 15)
    for batch_size, micro_batch in ((15, 15), (20, 10)):  # queries without a support behind the last whole one
        with pytest.raises(PlanError, match="episodes"):
            model.fit(x[:-3], y[:-3], batch_size, micro_batch=micro_batch, shuffle=False)
    with pytest.raises(PlanError, match="episodes"):
        model.evaluate(x[:-3], y[:-3], 15)
    assert model.position.updates == 0
    with pytest.raises(ShapeError, match="0 to 2"):
        model.fit(x, y + 1, len(x))


def test_a_softmax_stays_where_the_loss_has_none():
    x, y = episodes(1)
    net = embedding()
    net.add("softmax", ops.Softmax())
    model = Model(net).compile(SGD(0.1), loss=ops.Prototypical(WAYS, SHOTS))
    losses = model.loss.reference(model.predict(x).astype(np.float64), y)[0]
    assert model.evaluate(x, y, len(x))["loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_unlabelled_examples_become_surer():
    x, y = examples(64)
    model = Model(toy_network()).compile(SGD(0.05))
    model.fit(x, y, 16, 3)
    rest, _ = examples(64, seed=1)
    before = np.sort(model.predict(rest), 1)[:, -1].mean()
    model.compile(SGD(0.05), loss=ops.MinimumEntropy(0.5))
    labels = np.concatenate([y, np.full(64, -1)])
    model.fit(np.concatenate([x, rest]), labels, 32, 5)
    assert np.sort(model.predict(rest), 1)[:, -1].mean() > before


class Keep(Log):
    """The weights after each step."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def on_train_batch_end(self, batch, logs):
        self.kept.append(self.model.state()[0])


def spoilt(count: int, example: int, value: float) -> tuple[np.ndarray, np.ndarray]:
    x, y = examples(count)
    x[example, 2, 3, 1] = value
    return x, y


def set_to(value: float, *names: str, optimizer=ops.Adam(0.01)) -> Model:  # noqa: B008
    """A model without a ceiling, some of whose weights have one value."""
    net = toy_network(ceiling=None)
    full = {name: np.full(net.parameters[name].weight.shape, value) for name in names}
    return Model(net, net.initialize(0) | full).compile(optimizer)


def steep() -> Model:
    """Nothing overflows on the way up, if examples are small."""
    net = toy_network(ceiling=None)
    weights = net.initialize(0)
    weights["dense/kernel"] = np.sign(weights["dense/kernel"]) * np.float32(1e38)
    weights["body/kernel"] *= np.float32(1e5)
    return Model(net, weights).compile(SGD(1e-30))


def momentum(**settings) -> Model:
    return Model(toy_network()).compile(SGD(0.1, momentum=0.9), **settings)


X, Y = examples(12)
PARTS = {"batch_size": 12, "micro_batch": 5}
NONFINITE = [  # words of the message, model, examples, options of fit
    *(("Epoch 1, step 1: example 9", momentum, spoilt(12, 9, value), PARTS) for value in (np.nan, np.inf)),
    ("Epoch 1, step 1: example 9", lambda: momentum(batchnorm="batch"), spoilt(12, 9, np.nan), PARTS),
    *(("of example 17", lambda: Model(frozen_stem()).compile(SGD(0.1)), spoilt(20, 17, np.nan),
       {"batch_size": 20, "cache": cache}) for cache in ("fp32", "fp16")),
    *((f"first in layer '{layer}' \\(.*output", lambda name=name: set_to(3e38, name), (np.abs(X) * 10, Y), PARTS)
      for name, layer in (("body/kernel", "body"), ("stem_bn/gamma", "stem"), ("dense/kernel", "dense"))),
    (r"first in layer 'body' \(.*, stem/output gradient\)", steep, (X * np.float32(1e-30), Y), {"batch_size": 12}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "make", "data", "options"), NONFINITE)
def test_a_step_that_is_not_finite_is_named_and_changes_nothing(words, make, data, options):
    model = make()
    before = model.weights
    with pytest.raises(NonFiniteError, match=words):
        model.fit(*data, **options)
    assert same(model.weights, before)
    assert model.position.updates == 0
    assert model.context.ledger.held == 0


def test_a_huge_learning_rate():
    x, y = examples(12)
    model = Model(toy_network(ceiling=None)).compile(SGD(1e30))
    keep = Keep()
    with pytest.raises(NonFiniteError, match=r"step \d+: .* first in layer '\w+' .*1e\+30"):
        model.fit(x, y, 6, 5, callbacks=[keep])
    assert keep.kept
    last = {name.removeprefix("weights/"): array for name, array in keep.kept[-1].items()}
    assert same({name: model.weights[name] for name in last}, last)
    assert all(np.isfinite(array).all() for array in model.weights.values())
    model = Model(toy_network(ceiling=None)).compile(SGD(1e30))
    with pytest.raises(NonFiniteError, match=r"^Update [2-9]: .*global_clipnorm"):
        _ = [model.train_on_batch(x, y) for _ in range(9)]


def test_a_feature_too_large_for_fp16():
    x, y = examples(12)
    model = Model(frozen_stem(ceiling=None)).compile(SGD(1e-12))
    with pytest.raises(DataError, match="fp16"):
        model.fit(x * 1e6, y, 12, cache="fp16")
    model.fit(x * 1e6, y, 12, cache="fp32")


def network() -> Network:
    net = Network("three", (8, 8, 3))
    for layer in range(3):
        net.add(f"conv{layer}", ops.Conv2D(20, 3, padding="same", use_bias=False))
        net.add(f"norm{layer}", ops.BatchNormalization())
        net.add(f"relu{layer}", ops.ReLU(6))
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", ops.Dense(4))
    return net


def trained_within(activation_memory=keep_all, budget=None, allow=()) -> Model:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 8, 8, 3)).astype(np.float32), rng.integers(0, 4, 10)
    model = Model(network(), seed=1).compile(
        SGD(0.05), batchnorm="batch", activation_memory=activation_memory, allow=allow
    )
    model.fit(x, y, 4, 2, micro_batch=2, budget=budget)
    return model


def test_pages_change_no_bit(tmp_path):
    expected = trained_within()
    assert same(trained_within(paged).weights, expected.weights)
    assert same(trained_within(lambda net: paged(net, str(tmp_path)), None).weights, expected.weights)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PagingError, match="none"):
        trained_within(lambda net: paged(net, str(tmp_path / "none")))


def test_what_is_no_way_of_saving():
    with pytest.raises(PlanError, match="activation_memory"):
        Model(network()).compile(SGD(0.05), activation_memory={"conv0": Recompute()})
    assert trained_within(lambda net: {"conv1": Recompute()}).plan(4, 2).request.activation_memory == {
        "conv1": Recompute()
    }


def test_fewer_bits_change_some():
    assert not same(trained_within(lambda net: compressed(net, ops.Float16())).weights, trained_within().weights)


def test_within_a_budget_lossy_ways_are_asked_for():
    expected, budget = trained_within(), "30 kB stored"
    assert same(trained_within(budget=budget).weights, expected.weights)
    assert same(trained_within(budget=budget, allow=[Offload()]).weights, expected.weights)
    plan = expected.compile(SGD(0.05), batchnorm="batch", allow=[Compress()]).plan(4, 2, budget)
    assert account(plan).stored <= 30_000


@pytest.fixture(scope="module")
def frozen_model():
    network = mobilenet_v1((32, 32, 3), 0.25, 5).freeze().unfreeze("conv_pw_13", "dense")
    return Model(network).compile(SGD(0.01, momentum=0.9))


def test_phases(frozen_model):
    phases = frozen_model.phases(12, 5, cache="fp32")
    assert list(phases) == ["extract", "train"]
    assert phases.peak_bytes == max(plan.peak_bytes for plan in phases.values())
    record = phases.to_dict()
    assert record["peak_bytes"] == phases.peak_bytes
    assert record["phases"]["train"]["micro_batch"] == 5
    text = str(phases)
    assert "mini-batch 12 as micro-batches of 5" in text
    assert "(phase: extract, 16 at a time)" in text
    assert text.splitlines()[-1].split() == [
        "most", "device", "memory", "of", "the", "whole", "job", f"{phases.peak_bytes / 1e6:.2f}", "MB"
    ]  # fmt: skip
    assert list(frozen_model.phases(12, 5)) == ["train"]
    assert frozen_model.phases(12, 5)["train"].peak_bytes > phases["train"].peak_bytes


def test_the_most_that_fit_are_run_at_a_time(frozen_model):
    sizes = {n: frozen_model.forward_plan(n).peak_bytes for n in (16, 8, 4, 2, 1)}
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())
    for n, needed in sizes.items():
        assert frozen_model.forward_plan(budget=needed).request.micro_batch == n
    with pytest.raises(PlanError):
        frozen_model.forward_plan(budget=sizes[1] - 1)


FP16 = ops.Compute("fp16", plain=True)


@pytest.fixture
def trainer():
    with compiled().trainer(batch_size=8) as trainer:
        yield trainer


def compiled() -> Model:
    return Model(toy_network(), seed=1).compile(SGD(0.1, momentum=0.9), batchnorm="batch", compute=FP16)


def test_an_overflow_is_no_update_and_halves_the_scale(trainer):
    x, y = examples(8)
    before = trainer.weights
    trainer.position.loss_scale = 2.0**40
    trainer.step(x, y)
    assert (trainer.position.updates, trainer.position.loss_scale) == (0, 2.0**39)
    assert same(trainer.weights, before)
    while trainer.position.updates < 1:
        trainer.step(x, y)
    assert trainer.position.scaled == 1
    assert not same(trainer.weights, before)


def test_the_scale_does_not_change_what_is_learned(trainer):
    """It is a power of two, so that gradients have the same bits unless halves lose them."""
    x, y = examples(8)
    found = []
    for scale in (2.0**12, 2.0**13):
        trainer.position.loss_scale = scale
        found.append(trainer.gradients(x, y))
    for name, gradient in found[0].items():
        assert np.abs(gradient - found[1][name]).max() <= 1e-3 * np.abs(gradient).max() + 1e-7


def test_a_resumed_training_has_the_same_bits(trainer):
    x, y = examples(8)
    trainer.position.loss_scale, trainer.position.scaled = 2.0**30, GROWTH - 2
    for _ in range(3):
        trainer.step(x, y)
    state = trainer.state()
    for _ in range(12):
        trainer.step(x, y)
    with compiled().trainer(batch_size=8) as other:
        other.restore(*state)
        for _ in range(12):
            other.step(x, y)
        assert other.position == trainer.position
        assert same(other.weights, trainer.weights)


def test_the_scale_doubles_and_lasts():
    at = Position()
    for _ in range(GROWTH):
        at.scale_loss(finite=True)
    assert (at.loss_scale, at.scaled) == (131072.0, 0)
    assert at.next_epoch().loss_scale == at.loss_scale


def test_an_overflow_that_no_scale_prevents_is_an_error(trainer):
    x, y = examples(8)
    with pytest.raises(NonFiniteError):
        trainer.step(x * 1e6, y)


def test_halves_learn(tmp_path):
    x, y = examples(16)
    model = compiled()
    losses = model.fit(x, y, batch_size=8, epochs=6).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert model.predict(x).dtype == np.float32


def test_no_units():
    model = Model(toy_network())
    kinds = [kind for kind in ("bf16", "tf32") if kind not in model.device.units and "MMA" not in model.device.units]
    for kind in kinds:
        with pytest.raises(PlanError, match="plain=True"):
            model.compile(SGD(0.1), compute=kind).plan(batch_size=4)
    with pytest.raises(PlanError, match="cache"):
        model.compile(SGD(0.1), compute=FP16).plan(batch_size=4, cache="fp32")


GRADIENTS = ops.Format(8, rounding="stochastic")


def make(precision: Precision = INT8, batchnorm: str = "batch") -> Model:
    return Model(toy_network(), seed=4).compile(SGD(0.1, momentum=0.9), batchnorm=batchnorm, precision=precision)


@pytest.mark.parametrize("precision", [INT8, replace(INT8, simulated=False)], ids=["simulated", "integers"])
@pytest.mark.parametrize("updates", [1, 4])
def test_resumed(updates, precision):
    check_resumed(lambda: make(precision), updates)


def test_evaluation_has_trainings_ranges():
    x, y = examples(20)
    model = make()
    history = model.fit(x, y, 5, 2, validation_data=(x, y)).history
    again = model.evaluate(x, y, 5)
    assert again["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-6)
    assert moved(model, make()).evaluate(x, y, 5) == again
    model.compile(SGD(0.1), batchnorm="batch")
    assert model.evaluate(x, y, 5) != again, "no precision, no quantization"


def test_learns_as_float32_does():
    x, y = examples(60)
    losses = {}
    for name, precision in (("float32", Precision()), ("int8", INT8)):
        losses[name] = make(precision, "moving").fit(x, y, 10, 8).history["loss"]
    assert losses["int8"][-1] < 0.7 * losses["int8"][0]
    assert losses["int8"][-1] == pytest.approx(losses["float32"][-1], abs=0.05)
    assert losses["int8"] != losses["float32"]


def test_a_checkpoint_of_another_precision():
    x, y = examples(10)
    plain, quantized = make(Precision()), make()
    for model in (plain, quantized):
        model.fit(x, y, 5, 1)
    with pytest.raises(FormatError, match="precision"):
        moved(quantized, make(Precision()))
    for found, precision in (plain, INT8), (quantized, Precision(gradients=GRADIENTS)):
        other = moved(found, make(precision))
        with pytest.raises(FormatError, match="lack '"):
            other.fit(x, y, 5, 2)
    tensors, state = quantized.state()
    cut = make()
    cut.restore({name: t[:3] if name.startswith("ranges/") else t for name, t in tensors.items()}, state)
    with pytest.raises(FormatError, match=r"is \(3,\), not \(16,\)"):
        cut.fit(x, y, 5, 2)


def test_trace(tmp_path):
    x, y = examples(20)
    tracer = TraceRanges(every=3)
    make().fit(x, y, 5, 2, callbacks=[tracer])
    trace = tracer.trace
    assert trace.steps.tolist() == [1, 4, 7]
    assert trace.tensors == [
        "input/activations", "stem/weights", "stem_relu/activations", "body/weights", "body_relu/activations",
        "pool/activations", "body/gradients", "stem/gradients",
    ]  # fmt: skip
    assert (trace.staleness[0] == 0).all(), "the first step measures"
    assert (trace.staleness[1:, [0, 2]] > 0).all() and (trace.staleness[:, [1, 3]] == 0).all()
    assert (trace.cosine > 0.99).all() and (trace.cosine < 1.0001).all() and (trace.clipped < 0.1).all()
    assert (trace.signal_to_noise > 15).all() and trace.first_divergence() is None
    path = tmp_path / "trace.safetensors"
    path.write_bytes(trace.to_bytes())
    again = RangeTrace.read(path)
    assert again.tensors == trace.tensors and np.array_equal(again.steps, trace.steps)
    assert np.array_equal(again.records, trace.records)


def test_the_first_tensor_that_diverges():
    """Activations fit their ranges; gradients all round to 0, and that of the layer above is made first."""
    x, y = examples(20)
    precision = Precision(
        gradients=ops.Format(8), gradient_observer=ops.Fixed(-1e3, 1e3), activations=ops.Format(8),
        observer=ops.CurrentMinMax(), traced=True,
    )  # fmt: skip
    tracer = TraceRanges(every=1)
    make(precision).fit(x, y, 5, 1, callbacks=[tracer])
    assert tracer.trace.first_divergence() == (1, "dense/gradients")
    assert tracer.trace.cosine[0][tracer.trace.tensors.index("dense/gradients")] == 0


@pytest.mark.parametrize("size", [1e-24, 1e-8, 1.0, 1e24])
def test_cosines_of_tensors_of_any_size(size):
    """Sums of squares of small gradients are far below 1, and their products below what float32 holds."""
    records = np.zeros((1, 2, len(FIELDS)), np.float32)
    for name, values in {"signal": (1, 1), "product": (0.8, 0), "result": (1, 0), "noise": (0.4, 1)}.items():
        records[0, :, FIELDS.index(name)] = size * np.array(values)
    trace = RangeTrace(["a/gradients", "b/gradients"], np.array([1]), records)
    assert trace.cosine[0] == pytest.approx([0.8, 0])
    assert trace.signal_to_noise[0] == pytest.approx([3.98, 0], abs=0.01)
    assert trace.first_divergence(0.5) == (1, "b/gradients"), "all of it has become 0"


def test_traces_that_cannot_be(tmp_path):
    x, y = examples(10)
    with pytest.raises(PlanError, match="precision"):
        make(Precision()).fit(x, y, 5, 1, callbacks=[TraceRanges()])
    with pytest.raises(PlanError, match="1 or more"):
        TraceRanges(0)
    assert TraceRanges(1).trace.first_divergence() is None, "no step, no tensor that diverged"
    untraced = TraceRanges(1)
    make(Precision(gradients=ops.Format(8))).fit(x, y, 5, 1, callbacks=[untraced])
    with pytest.raises(PlanError, match="traced=True"):
        untraced.trace.first_divergence()
    assert len(FIELDS) == untraced.trace.records.shape[2]
    path = tmp_path / "weights.safetensors"
    path.write_bytes(untraced.trace.to_bytes()[:-4])
    with pytest.raises(FormatError):
        RangeTrace.read(path)


def test_a_precision_that_quantizes_nothing_here_can_be_resumed():
    """`norm_inputs` are what BatchNorm normalizes by the batch's statistics: with kept ones there are none."""
    check_resumed(lambda: make(Precision(norm_inputs=ops.Format(8)), "moving"), 2)


def test_unfreezing_measures_the_ranges_of_quantized_tensors_again():
    kept_and_new(SGD(0.1, momentum=0.9), lambda network: network.unfreeze("stem"), precision=INT8)
