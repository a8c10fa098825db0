"""A training that is stopped and gone on with gives the same bits as one that isn't."""

import json

import numpy as np
import pytest

from edgelearn.errors import FormatError, PlanError
from edgelearn.ops import SGD, Adam
from edgelearn.train import Callback, CosineDecay, Model, VariedSource

from .toys import Log, StopAfter, examples, frozen_stem, same, toy_network, weights_after

OPTIMIZERS = {
    "sgd": SGD(CosineDecay(0.1, 6)),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov with decay": SGD(0.1, 0.01, momentum=0.9, nesterov=True),
    "adam": Adam(0.01),
}


def make(optimizer, dropout=0.0, batchnorm="moving"):
    return Model(frozen_stem(dropout=dropout), seed=4).compile(optimizer, batchnorm=batchnorm)


def moved(model, other):
    """`other` where `model` stands, through what a file can hold."""
    tensors, state = model.state()
    other.restore({name: array.copy() for name, array in tensors.items()}, json.loads(json.dumps(state)))
    return other


@pytest.mark.parametrize("cache", [None, "fp32", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_resumed_in_the_middle_of_an_epoch(optimizer, cache):
    whole = weights_after(make(optimizer), cache=cache)
    stopped = make(optimizer)
    weights_after(stopped, cache=cache, callbacks=[StopAfter(4)])
    assert stopped.position.step == 1
    assert same(weights_after(moved(stopped, make(optimizer)), cache=cache), whole)
    assert same(weights_after(stopped, cache=cache), whole)  # the same model can go on too


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize(("dropout", "batchnorm"), [(0.4, "moving"), (0.0, "batch"), (0.4, "batch")])
def test_resumed_with_dropout_and_batch_statistics(updates, dropout, batchnorm):
    options = SGD(0.1, momentum=0.9), dropout, batchnorm
    whole = weights_after(make(*options))
    stopped = make(*options)
    weights_after(stopped, callbacks=[StopAfter(updates)])
    assert same(weights_after(moved(stopped, make(*options))), whole)


class Varied(VariedSource):
    """Ten examples, brighter by the epoch and their number; `seen` notes the epochs."""

    def __init__(self):
        self.seen = []
        x, self.labels = examples(10)
        super().__init__(x, self.brighten, np.float32)

    def brighten(self, images, indices, epoch):
        self.seen.append(epoch)
        return images + 0.1 * epoch + 0.01 * indices[:, None, None, None]


def test_resumed_with_examples_that_vary():
    def fit(model, *callbacks):
        source = Varied()
        model.fit(source, source.labels, 4, 3, micro_batch=2, callbacks=callbacks)
        return source.seen

    whole, stopped, resumed = (make(OPTIMIZERS["momentum"]) for _ in range(3))
    assert fit(whole) == [0] * 5 + [1] * 5 + [2] * 5
    fit(stopped, StopAfter(4))
    assert fit(moved(stopped, resumed))[-8:] == [1] * 3 + [2] * 5
    assert same(resumed.weights, whole.weights)


def test_examples_that_vary_are_not_cached():
    source = Varied()
    with pytest.raises(PlanError, match="cache"):
        make(SGD(0.1)).fit(source, source.labels, 4, cache="fp32")


def test_the_epochs_logs_are_whole_after_a_resume():
    def logs(history):
        return {name: values for name, values in history.history.items() if name != "seconds"}

    x, y = examples(10)
    optimizer = SGD(0.1, momentum=0.9)
    whole = make(optimizer).fit(x, y, 4, 2, validation_data=(x, y))
    stopped = make(optimizer)
    stopped.fit(x, y, 4, 2, validation_data=(x, y), callbacks=[StopAfter(2)])
    log = Log()
    assert logs(moved(stopped, make(optimizer)).fit(x, y, 4, 2, validation_data=(x, y), callbacks=[log])) == logs(whole)
    assert ("on_train_begin", {}) in log.calls  # what was before training isn't measured again


def test_state_taken_while_training():
    taken = []

    class Take(Log):
        def on_train_batch_end(self, batch, logs):
            tensors, state = self.model.state()
            taken.append(({name: array.copy() for name, array in tensors.items()}, json.dumps(state)))

    whole = weights_after(make(Adam(0.01)), callbacks=[Take()])
    assert len(taken) == 6
    for tensors, state in taken:  # among them ends of epochs, before and after which nothing is left to do
        model = make(Adam(0.01))
        model.restore(tensors, json.loads(state))
        assert same(weights_after(model), whole)


def test_state_before_training():
    model = make(SGD(0.1, momentum=0.9))
    whole = weights_after(moved(model, make(SGD(0.1, momentum=0.9))))
    assert same(weights_after(model), whole)


def test_state_holds_what_changes_and_no_more():
    model = make(SGD(0.1, momentum=0.9))
    weights_after(model)
    names = {"body/kernel", "body/bias", "body_bn/gamma", "body_bn/beta", "dense/kernel", "dense/bias"}
    tensors, state = model.state()
    assert set(tensors) == {f"weights/{n}" for n in names} | {f"optimizer/velocity/{n}" for n in names}
    assert state["epoch"] == 2 and state["updates"] == 6


def test_another_trainings_state_is_refused():
    model = make(SGD(0.1, momentum=0.9))
    weights_after(model)
    tensors, state = model.state()

    def refused(other, problem, tensors=tensors, state=state):
        before, position = other.weights, other.position
        with pytest.raises(FormatError, match=problem):
            other.restore(tensors, state)
        assert same(other.weights, before) and other.position == position

    refused(make(Adam(0.01)), "optimizer state.*'first moment/body/bias' is missing")
    refused(make(SGD(0.1)), "'velocity/body/bias' is unknown")
    refused(Model(toy_network()).compile(SGD(0.1, momentum=0.9), batchnorm="moving"), "'stem/kernel' is missing")
    refused(make(SGD(0.1, momentum=0.9), batchnorm="batch"), "moving_mean' is missing")
    lost = {name: array for name, array in tensors.items() if not name.startswith("optimizer/")}
    refused(make(SGD(0.1, momentum=0.9)), "'velocity/body/bias' is missing", lost)
    wrong = tensors | {"weights/dense/bias": np.zeros(4, np.float32)}
    refused(make(SGD(0.1, momentum=0.9)), "'dense/bias' has shape", wrong)
    wrong = tensors | {"optimizer/velocity/dense/bias": np.zeros(1, np.float32)}
    refused(make(SGD(0.1, momentum=0.9)), "'velocity/dense/bias' has shape", wrong)
    refused(make(SGD(0.1, momentum=0.9)), "moon", tensors, {"step": 1, "moon": 2})
    refused(make(SGD(0.1, momentum=0.9)), "epoch", tensors, state | {"epoch": "x"})
    refused(make(SGD(0.1, momentum=0.9)), "updates", tensors, state | {"updates": -1})
    refused(make(SGD(0.1, momentum=0.9)), "updates", tensors, state | {"updates": 10**12})
    strange = tensors | {"weight/dense/bias": np.zeros(3, np.float32)}
    refused(make(SGD(0.1, momentum=0.9)), "'weight/dense/bias'", strange)


def kept_and_new(optimizer, change, **settings):
    """State before and after `change` of the trained layers between two fits."""
    network = toy_network()
    network.freeze("stem", "stem_bn")
    model = Model(network).compile(optimizer, batchnorm="moving", **settings)
    x, y = examples(10)
    model.fit(x, y, 5)
    before = model.state()[0]
    change(network)
    states = []

    class Look(Callback):
        def on_train_begin(self, logs):
            states.append(self.model.state()[0])

    with pytest.warns(UserWarning, match="frozen or unfrozen") as warned:
        model.fit(x, y, 5, 2, callbacks=[Look()])
    assert len(warned) == 1
    assert np.isfinite(model.evaluate(x, y)["loss"])
    return before, states[0]


@pytest.mark.parametrize("optimizer", (SGD(0.1, momentum=0.9), Adam(0.01), Adam(0.01, use_ema=True)))
def test_unfreezing_between_fits_keeps_the_state_of_the_rest(optimizer):
    before, after = kept_and_new(optimizer, lambda network: network.unfreeze("stem"))
    assert sum("optimizer" in name and "stem/kernel" in name for name in after) == len(optimizer.all_slots)
    for name, array in after.items():
        if not name.startswith("optimizer/"):
            continue
        slot, parameter = name.split("/", 2)[1:]
        if name in before:
            assert np.array_equal(array, before[name]) and before[name].any()
        elif slot == "average":
            assert np.array_equal(array, after[f"weights/{parameter}"]), "an average starts at the weights"
        else:
            assert "stem/" in name and not array.any()


@pytest.mark.parametrize("optimizer", (SGD(0.1, momentum=0.9), Adam(0.01)))
def test_freezing_between_fits_keeps_the_state_of_the_rest(optimizer):
    before, after = kept_and_new(optimizer, lambda network: network.freeze("body"))
    slots = {name for name in after if name.startswith("optimizer/")}
    assert slots and not any("body/" in name for name in slots)
    assert all(np.array_equal(after[name], before[name]) for name in slots)
