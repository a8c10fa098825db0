"""Callbacks with Keras's names: what they save, lower, write, swap and watch."""

import csv
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.compile import Invert, Precision
from edgelearn.compile.policies import invertible
from edgelearn.errors import FormatError, NonFiniteError, PlanError, ReconstructionError, RunError
from edgelearn.graph import Network, reversible
from edgelearn.ops import SGD, Adam, Add, BatchNormalization, Conv2D, Dense, Format, GlobalAveragePooling2D, ReLU
from edgelearn.train import (
    Callback,
    CSVLogger,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    Model,
    ModelCheckpoint,
    ProgressBar,
    ReduceLROnPlateau,
    SwapEMAWeights,
    TensorBoard,
    TimeLimit,
    WatchReconstruction,
    callbacks,
)
from edgelearn.train.callbacks import Notebook
from edgelearn.train.remaining import Remaining
from tests.train.toys import Log, StopAfter, examples, frozen_stem, same, toy_network


def epochs_until_stop(values, monitor="val_loss", **options):
    """How many epochs with these values it lets run."""
    stopping = EarlyStopping(monitor, **options)
    stopping.model = SimpleNamespace(stop_training=False, weights={})
    stopping.on_train_begin({})
    for epoch, value in enumerate(values):
        stopping.on_epoch_end(epoch, {monitor: value})
        if stopping.model.stop_training:
            return epoch + 1
    return None


# Counted with Keras 3: keras.callbacks.EarlyStopping(monitor, min_delta, patience)
@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([3, 2, 1, 2, 2, 2], {}, 4),
        ([3, 2, 1, 2, 2, 2], {"patience": 1}, 4),
        ([3, 2, 1, 2, 2, 2], {"patience": 2}, 5),
        ([3, 2, 1, 2, 2, 2], {"patience": 4}, None),
        ([3, 2, 2, 1, 1, 1], {"patience": 2}, 6),
        ([3, 2.9, 2.8, 2.7, 2.6], {"patience": 2, "min_delta": 0.15}, None),
        ([3, 2.9, 2.8, 2.7, 2.6], {"patience": 1, "min_delta": 0.15}, 2),
        ([1, float("nan"), float("nan")], {"patience": 2}, 3),
        ([0.1, 0.5, 0.4], {"monitor": "val_accuracy"}, 3),
        ([0.1, 0.5, 0.6], {"monitor": "val_accuracy"}, None),
        ([3, 2, 1, 2, 2, 2], {"start_from_epoch": 3}, 5),
        ([3, 2.5, 2, 2, 2], {"baseline": 1, "patience": 3}, 4),
        ([1, 2, 3], {"mode": "max"}, None),
    ],
)
def test_early_stopping_counts_as_keras(values, options, epochs):
    assert epochs_until_stop(values, **options) == epochs


def test_early_stopping_in_fit():
    x, y = examples(10)
    stopping = EarlyStopping("loss")
    model = Model(toy_network()).compile(SGD(0.0))  # nothing gets better
    assert model.fit(x, y, 10, 20, callbacks=[stopping], shuffle=False).epoch == [0, 1]
    assert model.fit(x, y, 10, 20, callbacks=[stopping], shuffle=False).epoch == [2, 3]  # it counts anew


def test_early_stopping_says_what_it_lacks():
    model = Model(toy_network()).compile(SGD(0.1))
    with pytest.raises(PlanError, match=r"'val_loss'.*loss, accuracy, seconds"):
        model.fit(*examples(10), callbacks=[EarlyStopping()])


def test_time_limit():
    class Slow(Log):
        def on_train_batch_end(self, batch, logs):
            super().on_train_batch_end(batch, logs)
            time.sleep(0.05)

    slow = Slow()
    Model(toy_network()).compile(SGD(0.1)).fit(*examples(10), 2, 1)  # compiles kernels
    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(*examples(10), 2, 100, callbacks=[slow, TimeLimit(0.2)])
    assert 2 <= model.position.updates <= 5


def test_history_goes_on():
    history = History()
    history.on_epoch_end(0, {"loss": 2.0})
    history.on_epoch_end(1, {"loss": 1.0, "val_loss": 3.0})
    assert history.epoch == [0, 1] and history.history == {"loss": [2.0, 1.0], "val_loss": [3.0]}


def test_progress_bar_prints_a_row_an_epoch(capsys):
    model = Model(frozen_stem()).compile(SGD(0.1))
    x, y = examples(10)
    bar = ProgressBar(every=2)
    model.fit(x, y, 4, 5, validation_data=(x, y), callbacks=[bar], cache="fp32")
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("epoch")]
    assert [row.split()[1] for row in rows] == ["2/5", "4/5", "5/5"]
    assert "val_accuracy 0." in rows[0] and rows[0].endswith(" s")
    assert "15/15" in output


def test_progress_bar_ends_with_an_error():
    bar = ProgressBar()
    x, y = examples(10)
    x[3] = np.nan
    with pytest.raises(NonFiniteError):
        Model(toy_network()).fit(x, y, callbacks=[bar])
    ProgressBar().on_train_end({})
    assert bar._display is None


@pytest.fixture
def shown(monkeypatch):
    """The outputs of a notebook, one after the other in one place."""
    shown = []
    handle = SimpleNamespace(update=lambda html: shown.append(html.data))
    monkeypatch.setattr("IPython.display.display", lambda html, display_id: shown.append(html.data) or handle)
    return shown


def test_a_bar_says_when_everything_ends(shown, monkeypatch):
    """Not the phase alone, and until the kernels are compiled."""
    monkeypatch.setattr(callbacks, "in_notebook", lambda: True)
    model = Model(frozen_stem(), seed=3).compile(SGD(0.1))
    x, y = examples(10)
    bar, kinds = ProgressBar(), []
    monkeypatch.setattr(Remaining, "skip", lambda self, *names: kinds.append(set(self.work)))
    model.fit(x, y, 4, 2, validation_data=(x, y), callbacks=[bar], cache="fp32")
    assert kinds == [{"kernel", "warm", "example", "step", "validation", "checkpoint"}]
    assert all(re.search(r"\d s left$", each) for each in shown if "<progress" in each) and bar.remaining is None


def test_epochs_are_rows_of_one_table_in_a_notebook(shown, monkeypatch):
    """Their columns were ragged."""
    monkeypatch.setattr(callbacks, "in_notebook", lambda: True)
    model = Model(toy_network(), seed=3).compile(SGD(0.1), batchnorm="moving")
    model.fit(*examples(10), 4, 2, verbose=1)
    rows = re.findall("<tr>(.*?)</tr>", shown[-1])
    cells = [re.findall(">([^<]*)</t", row) for row in rows]
    assert cells[0] == ["epoch", "loss", "accuracy", "seconds"] and [row[0] for row in cells[1:]] == [
        "1 of 2",
        "2 of 2",
    ]
    assert all(cell.endswith(" s") for *_, cell in cells[1:]) and "<pre>" not in shown[-1]


def test_the_last_step_of_a_phase_is_shown_at_once_in_a_notebook(shown):
    bar = Notebook()
    for done in range(17):
        bar.show("compiling kernels", "", done, 16, "")
    assert "16 of 16" in shown[-1], "the first step of training may take long"


@pytest.fixture
def data():
    return examples(12)


def make(optimizer=None, seed=3):
    return Model(toy_network(), seed=seed).compile(optimizer or SGD(0.1, momentum=0.9), batchnorm="moving")


class Values(Callback):
    """Gives the epochs these figures."""

    def __init__(self, values, name="val_loss"):
        self.values, self.name, self.weights = values, name, []

    def on_epoch_end(self, epoch, logs):
        logs[self.name] = self.values[epoch]
        self.weights.append(self.model.weights)


def test_checkpoints_of_every_epoch_continue_the_training(data, tmp_path):
    x, y = data
    whole = make()
    whole.fit(x, y, 4, 3)
    model = make()
    model.fit(x, y, 4, 2, callbacks=[ModelCheckpoint(tmp_path / "new" / "last.safetensors")])
    continued = el.load(tmp_path / "new" / "last.safetensors", optimizer=SGD(0.1, momentum=0.9))
    continued.fit(x, y, 4, 3)
    assert same(continued.weights, whole.weights)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["last.safetensors"], "nothing else is left"


def test_the_best_and_the_last(data, tmp_path):
    values = Values([3, 1, 2, 0.5, 4])
    best = ModelCheckpoint(tmp_path / "best.safetensors", save_best_only=True)
    every = ModelCheckpoint(tmp_path / "{epoch:02d}-{val_loss:.1f}.safetensors")
    make().fit(*data, 4, 5, callbacks=[values, best, every])
    assert same(el.load(tmp_path / "best.safetensors").weights, values.weights[3])
    names = sorted(path.stem for path in tmp_path.iterdir())
    assert names == ["01-3.0", "02-1.0", "03-2.0", "04-0.5", "05-4.0", "best"]


def test_checkpoints_by_steps_and_thresholds(data, tmp_path):
    model = make()
    model.fit(*data, 4, 2, callbacks=[ModelCheckpoint(tmp_path / "{epoch}-{loss:.9f}.safetensors", save_freq=2)])
    assert len(list(tmp_path.iterdir())) == 3
    threshold = ModelCheckpoint(tmp_path / "never.safetensors", "accuracy", True, initial_value_threshold=1.1)
    make().fit(*data, 4, callbacks=[threshold])
    assert not (tmp_path / "never.safetensors").exists()


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "up"}, {"save_freq": 0}, {"save_best_only": True, "save_freq": 3}, {"filepath": "{missing}.safetensors"}],
)
def test_checkpoints_that_cannot_be(data, arguments, tmp_path):
    with pytest.raises(PlanError):
        make().fit(*data, 4, callbacks=[ModelCheckpoint(**{"filepath": tmp_path / "a.safetensors"} | arguments)])


def test_checkpoints_of_weights_alone(data, tmp_path):
    path, model = tmp_path / "w.safetensors", make()
    model.fit(*data, 4, callbacks=[ModelCheckpoint(path, save_weights_only=True)])
    assert set(el.interop.safetensors.read_weights(path)) == set(model.network.parameters)
    other = make(seed=4)
    dense = other.weights["dense/kernel"]
    other.load_weights(path, skip=("dense",))
    assert np.array_equal(other.weights["dense/kernel"], dense)
    other.load_weights(path)
    assert same(other.weights, model.weights)
    for suffix in ("onnx", "h5", ""):
        with pytest.raises(FormatError, match=r"weights alone end in .safetensors, .weights.h5"):
            ModelCheckpoint(tmp_path / f"w.{suffix}", save_weights_only=True)
    with pytest.raises(FormatError, match=r"ends? in .safetensors"):
        ModelCheckpoint(tmp_path / "w.weights.h5")


@pytest.mark.parametrize(("name", "values"), [("val_loss", [3, 1, 2, 2]), ("val_accuracy", [0.1, 0.9, 0.5, 0.5])])
def test_the_best_weights_come_back(data, name, values):
    seen = Values(values, name)
    model = make()
    model.fit(*data, 4, 9, callbacks=[seen, EarlyStopping(name, patience=2, restore_best_weights=True)])
    assert len(seen.weights) == 4
    assert same(model.weights, seen.weights[1]) and not same(model.weights, seen.weights[3])


def test_the_best_weights_come_back_to_a_trainer(data):
    seen, model = Values([3, 1, 2, 2]), make()
    with model.trainer(batch_size=4) as trainer:
        stopping = EarlyStopping(patience=2, restore_best_weights=True)
        trainer.fit(*data, 9, callbacks=[seen, stopping])
        assert same(trainer.weights, seen.weights[1]) and stopping.best_epoch == 1


# Counted with Keras 3: keras.callbacks.ReduceLROnPlateau(monitor, **options), the rates of the epochs
@pytest.mark.parametrize(
    ("values", "options", "rates"),
    [
        ([3, 2, 2, 2, 2], {"patience": 2, "factor": 0.5}, [1, 1, 1, 1, 0.5]),
        ([3, 3, 3, 3, 3], {"patience": 1, "factor": 0.5, "cooldown": 1}, [1, 1, 0.5, 0.25, 0.125]),
        ([3, 3, 3, 3, 3], {"patience": 1, "factor": 0.1, "min_lr": 0.05}, [1, 1, 0.1, 0.05, 0.05]),
        ([3, 2.9, 2.8, 2.7, 2.6], {"patience": 1, "min_delta": 0.5}, [1, 1, 0.1, 0.01, 0.001]),
    ],
)
def test_rates_fall_on_a_plateau(data, values, options, rates):
    model = make(SGD(1.0))
    history = model.fit(*data, 12, 5, callbacks=[Values(values), ReduceLROnPlateau(**options)])
    assert history.history["learning_rate"] == pytest.approx(rates)


def test_a_lowered_rate_is_part_of_the_state(data):
    model = make(SGD(1.0))
    model.fit(*data, 12, 2, callbacks=[Values([1, 1]), ReduceLROnPlateau(patience=1)])
    other = make(SGD(1.0))
    other.restore(*model.state())
    assert other.learning_rate == model.learning_rate == pytest.approx(0.1)
    model.compile(SGD(1.0))
    assert model.learning_rate == 1.0


def test_a_schedule_of_epochs_trains_as_one_of_steps(data):
    model = make(SGD(0.5))
    model.fit(*data, 4, 2, callbacks=[LearningRateScheduler(lambda epoch, rate: rate / 10)])
    other = make(SGD(lambda step: 0.05 if step < 3 else 0.005))
    other.fit(*data, 4, 2)
    assert all(np.allclose(a, other.weights[name], atol=1e-7) for name, a in model.weights.items())
    with pytest.raises(PlanError):
        make().fit(*data, 4, callbacks=[LearningRateScheduler(lambda epoch, rate: "fast")])
    with pytest.raises(PlanError):
        model.learning_rate = -1


def test_csv(data, tmp_path):
    path, model = tmp_path / "log.csv", make()
    model.fit(*data, 4, 2, validation_data=data, callbacks=[CSVLogger(path)])
    model.fit(*data, 4, 3, validation_data=data, callbacks=[CSVLogger(path, append=True)])
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} < rows[0].keys()
    assert float(rows[2]["val_loss"]) == pytest.approx(model.evaluate(*data)["loss"], rel=1e-6)
    with pytest.raises(RunError, match=r"log\.csv"):
        model.fit(*data, 4, 4, callbacks=[CSVLogger(path / "log.csv")])


def test_functions_as_a_callback(data):
    calls = []
    names = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_test_begin",
             "on_test_end", "on_epoch_end", "on_train_end")  # fmt: skip
    functions = {name: (lambda *arguments, name=name: calls.append(name)) for name in names}
    make().fit(*data, 6, validation_data=data, callbacks=[LambdaCallback(**functions)])
    begin = ["on_test_begin", "on_test_end", "on_train_begin", "on_epoch_begin"]
    step = ["on_train_batch_begin", "on_train_batch_end"]
    assert calls == [*begin, *step, *step, "on_test_begin", "on_test_end", "on_epoch_end", "on_train_end"]
    for wrong in ({"on_lunch": print}, {"on_epoch_end": 3}):
        with pytest.raises(PlanError):
            LambdaCallback(**wrong)


def test_event_files(data, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    model = make()
    history = model.fit(
        *data, 4, 2, validation_data=data, callbacks=[TensorBoard(tmp_path, update_freq=2)]
    ).history  # fmt: skip

    def scalars(part):
        found = {}
        for path in (tmp_path / part).glob("events*"):
            record, at = path.read_bytes(), 0
            while at < len(record):
                size = int.from_bytes(record[at : at + 8], "little")
                event = Event.FromString(record[at + 12 : at + 12 + size])
                at += size + 16
                for value in event.summary.value:
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
        return found

    train, validation = scalars("train"), scalars("validation")
    assert [step for step, _ in train["batch_loss"]] == [2, 4, 6]
    assert [value for _, value in train["epoch_loss"]] == pytest.approx(history["loss"])
    assert [value for _, value in validation["epoch_loss"]] == pytest.approx(history["val_loss"])


def test_the_average_is_that_of_the_weights_after_each_step(data):
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, batch, logs):
            seen.append(self.model.weights)

    model = make(Adam(0.01, use_ema=True, ema_momentum=0.75))
    model.fit(*data, 4, 2, callbacks=[Look()])
    weights = model.weights
    model.swap_averages()
    for name in model.network.trainable:
        average = seen[0][name].astype(float)
        for later in seen[1:]:
            average = 0.75 * average + 0.25 * later[name]
        np.testing.assert_allclose(model.weights[name], average, atol=1e-6)
    averaged = model.evaluate(*data)
    model.swap_averages()
    assert same(model.weights, weights)
    assert averaged != model.evaluate(*data)


def test_averages_in_validation_and_in_checkpoints(data, tmp_path):
    adam = Adam(0.01, use_ema=True, ema_momentum=0.75)
    plain, swapped = make(adam), make(adam)
    plain.fit(*data, 4, 2)
    path = tmp_path / "average.safetensors"
    callbacks = [SwapEMAWeights(swap_on_epoch=True), ModelCheckpoint(path)]
    history = swapped.fit(*data, 4, 2, validation_data=data, callbacks=callbacks).history
    plain.swap_averages()
    assert same(swapped.weights, plain.weights), "swapping leaves the training as it was"
    assert same(el.load(path).weights, plain.weights)
    assert history["val_loss"][-1] == pytest.approx(plain.evaluate(*data)["loss"], abs=1e-6)


def test_averages_are_resumed(data):
    adam = Adam(0.01, use_ema=True)
    whole, stopped, other = make(adam), make(adam), make(adam)
    whole.fit(*data, 4, 2)
    stopped.fit(*data, 4, 2, callbacks=[StopAfter(4)])
    other.restore(*stopped.state())
    other.fit(*data, 4, 2)
    for model in (whole, other):
        model.swap_averages()
    assert same(whole.weights, other.weights)


def test_no_average(data):
    with pytest.raises(PlanError, match="use_ema"):
        make().swap_averages()
    with pytest.raises(PlanError, match="use_ema"):
        make().fit(*data, 4, validation_data=data, callbacks=[SwapEMAWeights()])


ORDER = ["b1_add", "b0_add", "stem"]  # as they are inverted


def residual(step: float) -> Network:
    """A row of four blocks."""
    net = Network("residual", (6, 6, 3))
    x = net.add("stem", Conv2D(20, 3, padding="same"))
    for block in range(4):
        net.add(f"b{block}_conv", Conv2D(20, 3, padding="same", use_bias=False))
        net.add(f"b{block}_bn", BatchNormalization())
        net.add(f"b{block}_relu", ReLU())
        f = net.add(f"b{block}_mix", Conv2D(20, 1))
        x = net.add(f"b{block}_add", Add(), x, f)
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    return reversible(net, step=step)


def trained(step: float, callbacks=(), gain: float = 1.0, **more) -> Model:
    """`gain` is how much larger than usual the last block's share is."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 6, 6, 3)).astype(np.float32), rng.integers(0, 4, 10)
    network = residual(step)
    weights = network.initialize(1)
    weights["b3_mix/kernel"] *= gain
    model = Model(network, weights, seed=1).compile(SGD(0.05), batchnorm="batch", activation_memory=invertible, **more)
    model.fit(x, y, 4, 2, micro_batch=2, callbacks=callbacks)
    return model


def test_errors_are_recorded_once_an_epoch():
    watch = WatchReconstruction()
    trained(2**-16, [watch])
    assert [updates for updates, _ in watch.errors] == [1, 4]
    for _, errors in watch.errors:
        assert list(errors) == [*ORDER[:2], "stem_stream"] and set(errors.values()) == {0.0}


def test_errors_of_floats_grow_with_depth():
    watch = WatchReconstruction(every=2)
    trained(0, [watch])
    assert [updates for updates, _ in watch.errors] == [1, 3, 4, 6]
    for _, errors in watch.errors:
        assert list(errors) == ORDER
        assert 0 < errors["b1_add"] <= errors["stem"] < 1e-5


def test_a_run_stops_past_the_bound():
    with pytest.raises(ReconstructionError, match=r"Update 1: .*'b1_add'.*1.0e-10"):
        trained(0, [WatchReconstruction(1e-10)])


def test_fit_watches_by_itself():
    """What is a millionth of a sum can't come back from it."""
    with pytest.raises(ReconstructionError, match=r"Update 1: .*1.0e-03"):
        trained(2**-16, gain=1e6)


class Predicts(Callback):
    def on_train_batch_end(self, batch, logs):
        self.model.predict(np.zeros((1, 6, 6, 3), np.float32))


def test_a_callback_that_predicts_hides_nothing():
    with pytest.raises(ReconstructionError, match="Update 1: "):
        trained(2**-16, [Predicts()], gain=1e6)
    with pytest.raises(PlanError, match="WatchReconstruction"):
        trained(2**-16, [Predicts(), WatchReconstruction()])


def test_watching_changes_nothing():
    often, never = trained(2**-16, [WatchReconstruction(every=1)]), trained(2**-16, [WatchReconstruction(every=9**9)])
    for name, array in often.weights.items():
        assert np.array_equal(array, never.weights[name]), name


def test_what_is_rounded_is_not_inverted():
    assert Invert("b2_add") in invertible(residual(0)).values()
    with pytest.raises(PlanError, match="stem"):
        trained(0, precision=Precision(activations=Format(8)))
    streams = {"*_add": None, "stem*": None}
    trained(
        0, [WatchReconstruction()], precision=Precision(weights=Format(8), activations=Format(8), exceptions=streams)
    )
