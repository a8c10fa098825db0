"""Asynchronous rounds: synchronous ones as a special case, NumPy's arithmetic, and the same bits after a resume."""

import json

import numpy as np
import pytest

from edgelearn import federated as fl
from edgelearn.errors import FormatError, PlanError
from edgelearn.federated.compression import make_compressor
from edgelearn.federated.privacy import Privacy
from edgelearn.train import Callback
from tests.federated.regression import regression

CLIENTS, CLASSES, FEATURES, RATE = 5, 3, 4, 0.5
RNG = np.random.default_rng(5)
X = RNG.normal(size=(33, FEATURES)).astype(np.float32)
Y = np.arange(33) % CLASSES
DURATIONS = [1.0, 1.7, 2.3, 4.9, 11.0]


@pytest.fixture(scope="module")
def federation():
    """(model, clients) of softmax regression; a client's update sees all of its examples."""
    with regression(X, Y, CLIENTS, RATE) as made:
        yield made


def rounds_of(federation, grid=None, strategy=None, records=None, more=(), **settings):
    """A server of the federation from its first weights."""
    model, clients = federation
    model.weights = clients.weights
    record = (lambda happened: None) if records is None else records.append
    return fl.Server(
        model, model.changing, fl.ServerSettings(CLIENTS, **({"rounds": 8} | settings)), strategy or fl.FedAvg(),
        grid or fl.LocalGrid(clients), (X, Y), record=record, **dict(more),
    )  # fmt: skip


def simulated(federation, buffer=None, concurrency=None, durations=DURATIONS, work=None):
    return fl.SimulatedGrid(fl.LocalGrid(work or federation[1]), durations, buffer, concurrency)


def times(state):
    """The position without the answers' headers, which say how long a client really trained."""
    flown = [{k: v for k, v in each.items() if k != "header"} for each in state[1]["in_flight"]]
    return state[1] | {"in_flight": flown}


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("strategy", [fl.FedAvg(), fl.FedAdam()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("durations", [[1.0] * CLIENTS, DURATIONS])
def test_all_clients_at_once_are_synchronous_rounds(federation, strategy, durations):
    records, expected = [], []
    plain = rounds_of(federation, strategy=strategy, records=expected)
    plain.fit()
    for grid in (simulated(federation, CLIENTS, CLIENTS, durations), simulated(federation, durations=durations)):
        rounds = rounds_of(federation, grid, strategy, records)
        history = rounds.fit().history
        assert same(dict(rounds.weights), dict(plain.weights))
        np.testing.assert_allclose(history["simulated_seconds"], max(durations) * np.arange(1, 9))
    for found, wanted in zip(records, 2 * expected, strict=True):
        assert (found.up["payload"], found.down) == (wanted.up["payload"], wanted.down) and not found.left_out


def test_rounds_of_some_clients_wait_for_their_slowest(federation):
    rounds, plain = rounds_of(federation, simulated(federation), fraction=0.4), rounds_of(federation, fraction=0.4)
    seconds = rounds.fit().history["simulated_seconds"]
    plain.fit()
    assert same(dict(rounds.weights), dict(plain.weights))
    slowest = [max(DURATIONS[client] for client in rounds.settings.drawn(number)) for number in range(1, 9)]
    np.testing.assert_allclose(seconds, np.cumsum(slowest))


def gradient(w, x, y):
    """Gradients of the mean cross-entropy of softmax regression, float64."""
    logits = x @ w["dense/kernel"] + w["dense/bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(x)
    return {"dense/kernel": x.T @ error, "dense/bias": error.sum(0)}


def test_updates_equal_numpy(federation):
    """The event queue, written anew, for all clients in training at a time: changes from old weights count
    1/√(1 + age)."""
    records = []
    rounds = rounds_of(federation, simulated(federation, 2, CLIENTS), records=records)
    seconds = rounds.fit().history["simulated_seconds"]
    w = {name: np.float64(array) for name, array in federation[1].weights.items()}
    parts = federation[1].examples.parts
    events = [(DURATIONS[client], client, 1, w) for client in range(CLIENTS)]
    for number in range(1, 9):
        events.sort(key=lambda event: event[:2])
        arrived, events = events[:2], events[2:]
        now, total = arrived[-1][0], sum(len(parts[client]) for _, client, *_ in arrived)
        after = dict(w)
        for _, client, begun, old in arrived:
            g = gradient(old, np.float64(X[parts[client]]), Y[parts[client]])
            share = len(parts[client]) / total / np.sqrt(1 + number - begun)
            after = {name: after[name] - RATE * share * g[name] for name in w}
        w = after
        events += [(now + DURATIONS[client], client, number + 1, w) for _, client, *_ in arrived]
        ages = {client: number - begun for _, client, begun, _ in arrived}
        assert {each["client"]: each["staleness"] for each in records[number - 1].clients} == ages
        assert seconds[number - 1] == pytest.approx(now)
    assert max(each["staleness"] for record in records for each in record.clients) >= 3
    for name, array in rounds.weights.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, w[name], atol=3e-6)


class Saved(Callback):
    """The state after each round, as a checkpoint keeps it."""

    def __init__(self):
        self.states = []

    def on_epoch_end(self, epoch, logs):
        tensors, position = self.model.state()
        self.states.append(({name: array.copy() for name, array in tensors.items()}, json.dumps(position)))


@pytest.mark.parametrize("strategy", [fl.FedAvg(), fl.FedAvgM(decay=0.9)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("buffer", "concurrency"), [(1, 3), (3, 2), (2, 4)])
def test_the_same_bits_from_every_update(federation, strategy, buffer, concurrency):
    saved, whole = Saved(), rounds_of(federation, simulated(federation, buffer, concurrency), strategy, average=0.5)
    whole.fit([saved])
    for tensors, position in saved.states[:-1]:
        resumed = rounds_of(federation, simulated(federation, buffer, concurrency), strategy, average=0.5)
        resumed.restore(tensors, json.loads(position))
        resumed.fit()
        assert same(resumed.state()[0], whole.state()[0]) and times(resumed.state()) == times(whole.state())


def test_error_feedback_is_resumed(federation, tmp_path):
    """Clients' files hold what they left out; an update that is repeated after a kill begins with what it had."""
    clients = federation[1]
    topk, found = make_compressor("topk:0.3+int8+warmup:2"), []
    for folder, stop in (("whole", None), ("killed", 4)):
        work = fl.Clients(
            clients.trainer, dict(clients.weights), clients.examples, 1, 0, topk, fl.ClientMemory(tmp_path / folder)
        )
        saved, more = Saved(), {"compressor": topk}
        rounds = rounds_of(federation, simulated(federation, 2, 4, work=work), more=more)
        rounds.fit([saved])
        if stop:  # the clients' files are those of the end
            work.memory = fl.ClientMemory(tmp_path / "again")
            first = rounds_of(federation, simulated(federation, 2, 4, work=work), more=more, rounds=stop + 1)
            first.fit()
            rounds = rounds_of(federation, simulated(federation, 2, 4, work=work), more=more)
            rounds.restore(saved.states[stop - 1][0], json.loads(saved.states[stop - 1][1]))
            rounds.fit()
        found.append(rounds.state())
    assert same(found[0][0], found[1][0]) and times(found[0]) == times(found[1])


def test_bytes_count_where_they_are_sent(federation):
    records = []
    rounds = rounds_of(federation, simulated(federation, 2, 4), records=records)
    rounds.fit()
    weights = 4 * (FEATURES * CLASSES + CLASSES)
    assert [record.up["payload"] for record in records] == [2 * weights] * 8
    begun = sum(record.down["payload"] for record in records) // weights
    assert records[0].down["payload"] == 5 * weights  # four, and one in the place of the first that answered
    assert begun == 2 * 8 + len(rounds.state()[1]["in_flight"])
    assert all(each["down"]["payload"] == weights for record in records for each in record.clients)


def test_durations():
    assert fl.draw_durations([3, 5], 0.0) == [3.0, 5.0]
    found = np.log(fl.draw_durations([1] * 4000, 0.7, seed=2))
    assert abs(found.mean()) < 0.04 and abs(found.std() - 0.7) < 0.03
    assert fl.draw_durations([1, 1], 1.0, 2) == fl.draw_durations([1, 1], 1.0, 2) != fl.draw_durations([1, 1], 1.0, 3)


def test_what_cannot_be(federation):
    grid = simulated(federation, 2, 4)
    for wrong in ({"strategy": fl.FedMedian()}, {"strategy": fl.FedNova()}, {"fraction": 0.5},
                  {"more": {"privacy": Privacy(1.0, 1.0)}}, {"more": {"mixing": fl.Buckets()}},
                  {"more": {"down": make_compressor("int8")}}):  # fmt: skip
        with pytest.raises(PlanError):
            rounds_of(federation, grid, **wrong)
    for buffer, concurrency in ((0, 1), (1, 0), (CLIENTS + 1, 1), (1, CLIENTS + 1)):
        with pytest.raises(PlanError):
            simulated(federation, buffer, concurrency)
    rounds = rounds_of(federation, grid, rounds=2)
    rounds.fit()
    tensors, position = rounds.state()
    flown = position["in_flight"]
    for damaged in ({"clock": None}, {"in_flight": [flown[0] | {"client": 99}]}, {"in_flight": 3},
                    {"in_flight": [flown[0] | {"header": "Ω"}]}):  # fmt: skip
        with pytest.raises(FormatError):
            rounds.restore(tensors, position | damaged)
    with pytest.raises(FormatError):
        rounds.restore({k: v for k, v in tensors.items() if not k.startswith("in flight/")}, position)
    with pytest.raises(FormatError):
        rounds.restore(tensors, {"round": 2, "medians": []})
    assert same(rounds.state()[0], tensors) and rounds.state()[1] == position
