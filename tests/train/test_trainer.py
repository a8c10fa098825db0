"""A Trainer takes weights again and again, on one session."""

import numpy as np
import pytest

from edgelearn.errors import FormatError, NonFiniteError, PlanError
from edgelearn.ops import SGD, Adam
from edgelearn.runtime import Context, Kernels, Session
from edgelearn.train import Model, Trainer, model
from tests.own_files import import_own

from .toys import INT8, Log, examples, frozen_stem, same, toy_network

CLIENT = '''
"""A federated client: weights in, epochs, weights out."""

from edgelearn.train import Trainer


class Client:
    def __init__(self, trainer: Trainer, x, y) -> None:
        self.trainer, self.x, self.y = trainer, x, y

    def fit(self, weights, config):
        self.trainer.load(weights)
        history = self.trainer.fit(self.x, self.y, epochs=config["epochs"]).history
        return self.trainer.weights, len(self.x), {"loss": history["loss"][-1]}
'''


@pytest.fixture
def counted(monkeypatch):
    """Counts of plans, sessions, allocations, and programs that were not compiled before."""
    counts = {"plans": 0, "sessions": 0, "allocations": 0, "kernels": 0}

    def count(owner, name, what):
        original = getattr(owner, name)

        def counting(*arguments, **options):
            counts[what] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    count(model, "make_plan", "plans")
    count(Session, "__init__", "sessions")
    count(Context, "allocate", "allocations")
    count(Kernels, "kernel", "kernels")
    return counts


OPTIONS = {
    "momentum": {"optimizer": SGD(0.1, momentum=0.9)},
    "adam, batch statistics": {"optimizer": Adam(0.01), "batchnorm": "batch"},
    "int8": {"optimizer": SGD(0.1), "precision": INT8},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_federated_client_is_one_file(tmp_path, counted, options):
    module = import_own(tmp_path, "client", py=CLIENT)
    (x, y), network = examples(10), toy_network(dropout=0.3)
    rounds = [network.initialize(seed) for seed in (5, 6, 7)]
    model = Model(network, rounds[0], seed=3).compile(**options)
    fresh = [Model(network, weights, seed=3, share_with=model).compile(**options) for weights in rounds]
    expected = []
    for other in fresh:
        loss = other.fit(x, y, 4, 2, micro_batch=3).history["loss"][-1]
        expected.append((other.weights, loss))

    with model.trainer(4, 3, examples=[len(x)]) as trainer:
        client = module.Client(trainer, x, y)
        for number, weights in enumerate(rounds):
            result, count, metrics = client.fit(weights, {"epochs": 2})
            assert count == 10 and metrics["loss"] == expected[number][1]
            assert same(result, expected[number][0])
            if number == 0:
                before = dict(counted)
        assert counted == before
        assert model.context.ledger.held == trainer.plan.peak_bytes
    assert model.context.ledger.held == 0


def test_steps_are_those_of_fit():
    x, y = examples(12)
    model = Model(toy_network(), seed=1).compile(SGD(0.1, momentum=0.9))
    with model.trainer(4) as trainer:
        losses = [trainer.step(x[i : i + 4], y[i : i + 4])["loss"] for i in (0, 4, 8)]
        assert trainer.position.updates == 3
        tensors, position = trainer.state()
        after, more = trainer.weights, trainer.step(x[:4], y[:4])
        trainer.restore(tensors, position)
        assert same(trainer.weights, after) and trainer.step(x[:4], y[:4]) == more
        trainer.restore(tensors, position)
        again = trainer.weights
    log = Log()
    model.fit(x, y, 4, shuffle=False, callbacks=[log])
    assert [call[2]["loss"] for call in log.calls if call[0] == "on_train_batch_end"] == losses
    assert same(model.weights, again)


def test_train_on_batch_is_the_same_and_stays_open(counted):
    x, y = examples(12)
    model = Model(toy_network(), seed=1).compile(SGD(0.1, momentum=0.9))
    for i in (0, 4, 8):
        model.train_on_batch(x[i : i + 4], y[i : i + 4])
        if i == 0:
            before = dict(counted)
    assert counted == before
    whole = Model(toy_network(), seed=1).compile(SGD(0.1, momentum=0.9))
    whole.fit(x, y, 4, shuffle=False)
    assert same(model.weights, whole.weights)
    assert model.test_on_batch(x, y) == model.evaluate(x, y, 12)
    np.testing.assert_array_equal(model.predict_on_batch(x), model.predict(x, 12))


def test_assigned_weights_reach_the_open_session(counted):
    x, y = examples(6)
    model = Model(toy_network(), seed=1).compile(SGD(0.1, momentum=0.9))
    others = toy_network().initialize(9)
    model.predict(x)
    before = dict(counted)
    model.weights = others
    found = model.predict(x)
    assert counted == before
    np.testing.assert_array_equal(found, Model(toy_network(), others).predict(x))
    model.train_on_batch(x, y)
    before = dict(counted)
    model.weights = others
    model.train_on_batch(x, y)
    assert counted == before and model.position.updates == 2


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients(options):
    x, y = examples(10)
    model = Model(toy_network(), seed=1).compile(**options | {"optimizer": SGD(1.0)})
    model.train_on_batch(x, y)
    state, weights = model.state()[0], model.weights
    gradients = model.gradients(x, y)
    assert set(gradients) == model.network.trainable
    assert same(model.gradients(x, y, micro_batch=10), gradients)
    assert same(model.state()[0], state) and model.position.updates == 1
    model.train_on_batch(x, y)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(model.weights[name], weights[name] - gradient, rtol=1e-5, atol=1e-6)


def test_no_plan_is_made_twice(counted):
    (x, y), (x2, y2) = examples(10), examples(7, seed=2)
    model = Model(frozen_stem()).compile(SGD(0.1), batchnorm="moving")

    def use():
        model.fit(x, y, 4, model.position.epoch + 1, validation_data=(x2, y2), cache="fp32")
        model.fit(x, y, 4, model.position.epoch + 1)
        model.evaluate(x, y)
        model.predict(x2)
        model.predict(x2[:1])
        model.compile(SGD(0.1), batchnorm="moving")

    use()
    use()  # sizes of last micro-batches are known now
    before = counted["plans"]
    use()
    assert counted["plans"] == before
    model.network.freeze().unfreeze("dense")
    model.fit(x, y, 4)
    assert counted["plans"] > before


def test_what_a_trainer_refuses():
    x, y = examples(10)
    model = Model(toy_network())
    with pytest.raises(PlanError):
        Trainer(model.forward_plan(), model.weights, model.context)
    with model.trainer(4) as trainer:
        with pytest.raises(PlanError, match=r"10 .*4"):
            trainer.step(x, y)
        with pytest.raises(FormatError, match="'stem/kernel'"):
            trainer.load({})
        x[2, 0, 0, 0] = np.nan
        before = trainer.weights
        with pytest.raises(NonFiniteError, match="example 2"):
            trainer.step(x[:4], y[:4])
        assert same(trainer.weights, before)
