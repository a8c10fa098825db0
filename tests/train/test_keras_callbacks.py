"""Callbacks with Keras's names: what they save, lower, write and swap."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import FormatError, PlanError, RunError
from edgelearn.ops import SGD, Adam
from edgelearn.train import (
    Callback,
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    Model,
    ModelCheckpoint,
    ReduceLROnPlateau,
    SwapEMAWeights,
    TensorBoard,
)

from .toys import StopAfter, examples, same, toy_network


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


# Counted with Keras 3: keras.callbacks.EarlyStopping(monitor, **options)
@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([3, 2, 1, 2, 2, 2], {"start_from_epoch": 3}, 5),
        ([3, 2.5, 2, 2, 2], {"baseline": 1, "patience": 3}, 4),
        ([1, 2, 3], {"mode": "max"}, None),
    ],
)
def test_early_stopping_options(values, options, epochs):
    stopping = EarlyStopping(**options)
    stopping.model, counted = SimpleNamespace(stop_training=False, weights={}), None
    stopping.on_train_begin({})
    for epoch, value in enumerate(values):
        stopping.on_epoch_end(epoch, {"val_loss": value})
        if stopping.model.stop_training:
            counted = epoch + 1
            break
    assert counted == epochs


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
