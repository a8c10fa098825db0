"""Secure aggregation: Shamir's shares, the sum of the clients that answered, and nothing else."""

import itertools

import numpy as np
import pytest

import edgelearn as el
from edgelearn import federated as fl
from edgelearn.errors import FormatError, PlanError, RunError
from edgelearn.federated.privacy import STEP
from edgelearn.federated.secure import FixedPoint, SecureGrid, SecureWork, _read, _stage, deal, recover
from edgelearn.ops import Dense

CLIENTS = 6


def test_any_shares_of_the_threshold_tell_a_secret():
    secret = bytes(range(1, 33))
    shares = deal(secret, range(5), 3)
    for some in itertools.combinations(shares, 3):
        assert recover({holder: shares[holder] for holder in some}) == secret
    assert recover(shares) == secret
    with pytest.raises(FormatError):
        recover({holder: shares[holder] for holder in (0, 4)})  # a random number of 521 bits


def model():
    network = el.Network("small", (5,))
    network.add("dense", Dense(3))
    return el.Model(network, seed=0).compile(el.SGD(0.1))


class Work:
    """A client's change, in fixed point, with numbers of its own."""

    def __init__(self, masks, shapes):
        self.masks, self.shapes = masks, shapes

    def change(self, client, number):
        rng = np.random.default_rng([client, number])
        return [rng.normal(size=shape).astype(np.float32) for shape in self.shapes]

    def answer(self, data):
        asked = fl.Instruction.from_bytes(data)
        payload = self.masks.hide(self.change(asked.client, asked.round), asked.client, asked.round)
        return fl.Reply(asked.round, asked.client, payload, 1, {"loss": 1.0}).to_bytes()


class Dropping(fl.LocalGrid):
    """Clients vanish at a stage of the first round."""

    def __init__(self, work, vanish):
        super().__init__(work)
        self.vanish, self.seen = vanish, []

    def exchange(self, instructions, deadline, arrived):
        stage = _read(instructions[min(instructions)])[0]["stage"]
        gone = [client for client, at in self.vanish.items() if at == stage and client in instructions]
        there = {client: data for client, data in instructions.items() if client not in gone}
        outcomes = dict(super().exchange(there, deadline, arrived).items())
        self.seen += [data for data in outcomes.values() if stage == "train"]
        return outcomes | dict.fromkeys(gone, "gone")


def federation(tmp_path, vanish, rounds=1):
    made, settings = model(), fl.ServerSettings(CLIENTS, rounds)
    before = {name: array.copy() for name, array in made.weights.items()}
    work = Work(FixedPoint(settings.drawn), [before[name].shape for name in made.changing])
    inner = Dropping(SecureWork(work, fl.ClientMemory(tmp_path / "secrets")), vanish)
    grid, records, test = SecureGrid(settings.drawn, grid=inner), [], (np.zeros((1, 5), np.float32), np.zeros(1, int))
    server = fl.Server(made, made.changing, settings, fl.FedAvg(), grid, test, grid, records.append, grid)
    return server, work, before, inner, records


VANISH = [{}, {2: "train"}, {0: "train", 5: "train"}, {1: "keys"}, {3: "shares"}, {4: "unmask"},
          {0: "keys", 5: "train"}]  # fmt: skip


@pytest.mark.parametrize("vanish", VANISH, ids=str)
def test_the_mean_is_that_of_the_clients_that_answered(tmp_path, vanish):
    server, work, before, inner, records = federation(tmp_path, vanish)
    server.fit()
    there = [client for client in range(CLIENTS) if vanish.get(client, "unmask") == "unmask"]
    for place, name in enumerate(server.names):
        mean = np.mean([np.float64(work.change(client, 1)[place]) for client in there], 0)
        np.testing.assert_allclose(server.weights[name] - before[name], mean, atol=STEP + 1e-6)
    (record,) = records
    assert [each["client"] for each in record.clients] == there
    assert sorted(record.left_out) == sorted(str(c) for c in range(CLIENTS) if c not in there)
    sent = sum(each["up"]["total"] for each in record.clients)
    assert record.up["total"] > sent and record.up["payload"] == len(there) * 4 * 18
    values = np.frombuffer(b"".join(fl.Reply.from_bytes(data).payload for data in inner.seen), "<u4") / 2**32
    plain = np.frombuffer(work.masks.hide(work.change(there[0], 1), there[0], 1), "<u4") / 2**32
    assert np.abs(plain - 0.5).min() > 0.49 and np.histogram(values, 4)[0].min() > 5, "what is sent looks random"


def test_bits_do_not_depend_on_keys(tmp_path):
    found = []
    for run in "ab":
        server, *_ = federation(tmp_path / run, {1: "train"}, rounds=3)
        server.fit()
        found.append(server.weights["dense/kernel"].tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("stage", ("keys", "train", "unmask"))
def test_too_few_clients_end_the_round(tmp_path, stage):
    server, *_ = federation(tmp_path, dict.fromkeys(range(3), stage))
    with pytest.raises(RunError, match="needs 4"):
        server.fit()


def test_a_client_tells_no_more_than_the_sum(tmp_path):
    """Never the key and the seed of one client, never for too few, and once a round."""
    server, *_ = federation(tmp_path, {2: "train"})
    secure, asked = server.grid.grid.work, []
    answer = secure.answer

    def listening(data):
        asked.append(data)
        return answer(data)

    secure.answer = listening
    server.fit()
    fields = next(f for f in (_read(data)[0] for data in asked) if f["stage"] == "unmask")
    own, told = fields["client"], fl.ClientMemory(tmp_path / "secrets").load(fields["client"], 2)["secure"].tobytes()
    assert b"told" in told and (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    for change in ({}, {"missing": [2, own]}, {"answered": [own]}, {"answered": [3, 4, 5, 1]}):
        reply = _read(answer(_stage("unmask", {**fields, **change})))[0]
        assert "more than the sum" in reply["problem"]
    again = _read(answer(_stage("shares", {"round": 1, "client": own, "threshold": 1, "keys": {"0": {}, "1": {}}})))[0]
    assert "hides nothing" in again["problem"]
    with pytest.raises(PlanError):
        SecureGrid(lambda number: [0], grid=None, share=0.2)
