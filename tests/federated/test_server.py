"""Rounds: FedAvg against NumPy, the same bits again and after a resume, and clients that fail or lie."""

import tracemalloc
from dataclasses import replace
from math import floor
from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn import federated as fl
from edgelearn.errors import FormatError, PlanError, RunError
from edgelearn.federated import messages
from edgelearn.federated.compression import Partly, make_compressor
from edgelearn.federated.messages import Outcomes
from edgelearn.federated.privacy import Privacy
from edgelearn.federated.server import NormLimit, most_examples
from edgelearn.ops import Dense
from edgelearn.train import Callback
from tests.federated.regression import regression

CLIENTS, CLASSES, FEATURES, RATE = 4, 3, 5, 0.5
RNG = np.random.default_rng(5)
X = RNG.normal(size=(26, FEATURES)).astype(np.float32)
Y = np.arange(26) % CLASSES


@pytest.fixture(scope="module")
def federation():
    """(model, clients) of softmax regression; a client's update sees all of its examples."""
    with regression(X, Y, CLIENTS, RATE) as made:
        yield made


def rounds_of(federation, strategy=None, grid=None, records=None, parts=(), **settings):
    """A server of the federation from its first weights; `parts`: other arguments of it, such as `down`."""
    model, clients = federation
    model.weights = clients.weights
    settings = fl.ServerSettings(CLIENTS, **({"rounds": 3} | settings))
    record, grid = (lambda happened: None) if records is None else records.append, grid or fl.LocalGrid(clients)
    strategy = strategy or fl.FedAvg()
    return fl.Server(model, model.changing, settings, strategy, grid, (X, Y), record=record, **dict(parts))


def gradient(w, x, y):
    """Gradients of the mean cross-entropy of softmax regression, float64."""
    logits = x @ w["dense/kernel"] + w["dense/bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(x)
    return {"dense/kernel": x.T @ error, "dense/bias": error.sum(0)}


@pytest.mark.parametrize("decay", (1.0, 0.5))
def test_fedavg_equals_numpy(federation, decay):
    """Also with steps of the server that halve from round to round."""
    rounds, clients = rounds_of(federation, fl.FedAvg(decay=decay)), federation[1]
    expected = {name: np.float64(array) for name, array in clients.weights.items()}
    rounds.fit()
    for number in range(3):
        means = [gradient(expected, np.float64(X[part]), Y[part]) for part in clients.examples.parts]
        shares = np.array(clients.examples.sizes) / len(X)
        expected = {
            n: w - decay**number * RATE * sum(s * g[n] for s, g in zip(shares, means, strict=True))
            for n, w in expected.items()
        }
    for name, array in rounds.weights.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[name], atol=2e-6)
    np.testing.assert_array_equal(federation[0].weights["dense/kernel"], rounds.weights["dense/kernel"])


def test_fedprox_equals_numpy():
    """Two epochs of one step each, the second pulled back to the weights that the client received."""
    network = el.Network("regression", (FEATURES,))
    network.add("dense", Dense(CLASSES))
    model = el.Model(network, seed=3).compile(el.SGD(RATE, proximal=0.4))
    examples = fl.Examples(X, Y, fl.IID(CLIENTS, seed=1).divide(Y))
    start = {name: np.float64(array) for name, array in model.weights.items()}
    with model.trainer(8, examples=examples.sizes) as trainer:
        clients = fl.Clients(trainer, dict(model.weights), examples, epochs=2, seed=0)
        rounds = fl.Server(
            model, model.changing, fl.ServerSettings(CLIENTS, 1), fl.FedAvg(), fl.LocalGrid(clients), (X, Y)
        )
        rounds.fit()
    sums = dict.fromkeys(start, 0.0)
    for part in examples.parts:
        w = dict(start)
        for _ in range(2):
            g = gradient(w, np.float64(X[part]), Y[part])
            w = {n: a - RATE * (g[n] + 0.4 * (a - start[n])) for n, a in w.items()}
        sums = {n: sums[n] + len(part) / len(X) * a for n, a in w.items()}
    for name, array in rounds.weights.items():
        np.testing.assert_allclose(array, sums[name], atol=2e-6)


@pytest.mark.parametrize("momentum", (0.0, 0.9))
def test_fednova_equals_numpy(momentum):
    """Clients of 1 to 13 examples make 1 to 7 updates of 2; one with identical gradients goes as far as the others."""
    rng, sizes, rate = np.random.default_rng(4), [1, 6, 13], 0.1
    gradients = [rng.normal(size=(7, 3)) for _ in sizes]
    changes, ways = [], []
    for size, steps in zip(sizes, gradients, strict=True):
        velocity, change, weights = 0.0, 0.0, np.zeros(7)
        for step in range(-(-size // 2)):
            velocity = momentum * velocity + steps[step]
            change = change - rate * velocity
            weights[: step + 1] += momentum ** np.arange(step, -1, -1.0)
        changes.append([np.float32(change)])
        ways.append(weights.sum())
    strategy = fl.FedNova().fitted(momentum, 2, 1, None)
    (found,) = strategy.combined(changes, sizes, 1.0)
    shares = np.array(sizes) / sum(sizes)
    expected = (shares @ ways) * sum(s * c[0] / w for s, c, w in zip(shares, np.float64(changes), ways, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert [strategy.way(size) for size in sizes] == pytest.approx(ways)
    alike = fl.FedNova().fitted(momentum, 2, 1, 5).combined(changes, sizes, 1.0)
    np.testing.assert_array_equal(alike, fl.FedAvg().combined(changes, sizes, 1.0))


class Bits(Callback):
    """The state after each round."""

    def __init__(self):
        self.states = []

    def on_epoch_end(self, epoch, logs):
        self.states.append(self.model.state())


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize(
    "strategy",
    [fl.FedAvg(), fl.FedAvgM(decay=0.9), fl.FedAdam(), fl.FedYogi(), fl.NormClipping()],
    ids=lambda s: type(s).__name__,
)
def test_the_same_bits_again_and_from_every_round(federation, strategy):
    bits = Bits()
    whole = rounds_of(federation, strategy, fraction=0.5)
    whole.fit([bits])
    for tensors, position in bits.states[:2]:
        resumed = rounds_of(federation, strategy, fraction=0.5)
        resumed.restore(tensors, position)
        resumed.fit()
        assert same(resumed.state()[0], whole.state()[0]) and resumed.state()[1] == whole.state()[1]
    assert len({tensors["weights/dense/kernel"].tobytes() for tensors, _ in bits.states}) == 3


def test_averages_are_tested_and_clients_get_the_weights_themselves(federation):
    """The mean of rounds 1 to n by shares of decay^(n - number), which add up to 1; float64 says the same."""
    bits, logs, models = Bits(), [], []

    class Tested(Callback):
        def on_epoch_end(self, epoch, found):
            logs.append(found)
            models.append(dict(rounds.model.weights))

    plain, plain_logs = rounds_of(federation, rounds=5), []
    plain.fit([bits, collecting(plain_logs)])
    rounds = rounds_of(federation, rounds=5, average=0.6)
    rounds.fit([Tested()])
    each = [tensors for tensors, _ in bits.states]
    assert same({f"weights/{name}": array for name, array in rounds.weights.items()}, each[-1])
    for number in range(1, 6):
        shares = 0.6 ** np.arange(number - 1, -1, -1.0)
        for name, array in models[number - 1].items():
            expected = np.tensordot(shares / shares.sum(), [np.float64(t[f"weights/{name}"]) for t in each[:number]], 1)
            np.testing.assert_allclose(array, expected, atol=1e-6)
    for name, value in rounds.model.evaluate(X, Y).items():
        assert logs[-1][f"val_{name}"] == value
        assert logs[-1][f"val_raw_{name}"] == plain_logs[-1][f"val_{name}"]
    assert logs[-1]["val_loss"] != logs[-1]["val_raw_loss"]
    assert logs[0]["val_loss"] == logs[0]["val_raw_loss"]  # one round is its own mean


@pytest.mark.parametrize("frequency", (1, 2, 3))
def test_averages_are_resumed(federation, frequency):
    settings = {"rounds": 5, "average": 0.9, "fraction": 0.5, "validation_frequency": frequency}
    bits, whole = Bits(), rounds_of(federation, fl.FedAdam(), **settings)
    whole.fit([bits])
    tested = {name: array.copy() for name, array in whole.model.weights.items()}
    for tensors, position in bits.states:
        resumed = rounds_of(federation, fl.FedAdam(), **settings)
        resumed.restore(tensors, position)
        resumed.fit()
        assert same(resumed.state()[0], whole.state()[0]) and same(resumed.model.weights, tested)
    without = {name: array for name, array in bits.states[0][0].items() if not name.startswith("average/")}
    with pytest.raises(FormatError):
        rounds_of(federation, fl.FedAdam(), **settings).restore(without, {"round": 1})


@pytest.mark.parametrize("decay", (-0.1, 1.0, np.nan))
def test_decays_that_cannot_be(federation, decay):
    with pytest.raises(PlanError):
        rounds_of(federation, average=decay)


def collecting(logs):
    """A callback that adds each round's figures to `logs`."""
    callback = Callback()
    callback.on_epoch_end = lambda epoch, found: logs.append(found)
    return callback


@pytest.mark.parametrize(("number", "client"), [(1, CLIENTS), (1, -1), (1, 10**12), (-1, 0)])
def test_an_instruction_for_nobody_is_refused(federation, number, client):
    reply = fl.Reply.from_bytes(federation[1].answer(fl.Instruction(number, client, b"").to_bytes()))
    assert reply.problem and not reply.payload


def test_metrics_hide_nothing_in_a_record(federation):
    lie, records = {"client": 9.0, "examples": 7.0, "up": 1.0}, []
    rounds_of(federation, grid=Tampering(federation[1], {2: changed(metrics=lie)}), records=records, rounds=1).fit()
    honest = records[0].clients[2]
    assert honest["client"] == 2 and honest["examples"] == len(federation[1].examples.parts[2])
    assert honest["up"]["payload"] == 4 * (FEATURES * CLASSES + CLASSES)


def test_clients_are_drawn_by_seed_and_round():
    settings = fl.ServerSettings(100, 5, fraction=0.1, seed=7)
    drawn = [settings.drawn(number) for number in range(1, 6)]
    assert (
        drawn
        == [settings.drawn(number) for number in range(1, 6)]
        != [replace(settings, seed=8).drawn(number) for number in range(1, 6)]
    )
    assert all(each == sorted(set(each)) and len(each) == 10 for each in drawn)
    assert fl.ServerSettings(3, 1, fraction=0.01).drawn(1) in ([0], [1], [2])


class Tampering:
    """A grid on whose replies a function works; it counts bytes."""

    def __init__(self, clients, tamper):
        self.grid, self.tamper, self.down, self.up = fl.LocalGrid(clients), tamper, 0, 0

    def exchange(self, instructions, deadline, arrived):
        self.down += sum(map(len, instructions.values()))
        outcomes = self.grid.exchange(instructions, deadline, arrived)
        outcomes = {client: self.tamper.get(client, lambda x: x)(outcome) for client, outcome in outcomes.items()}
        self.up += sum(len(outcome) for outcome in outcomes.values() if isinstance(outcome, bytes))
        return outcomes


def changed(payload=lambda p: p, **fields):
    def change(data):
        reply = fl.Reply.from_bytes(data)
        return replace(reply, payload=payload(reply.payload), **fields).to_bytes()

    return change


LIES = {
    "gone": lambda data: "the connection broke", "torn": lambda data: data[:2], "short": changed(lambda p: p[4:]),
    "NaN": changed(lambda p: np.full(len(p) // 4, np.nan, "<f4").tobytes()),
    "huge": changed(lambda p: (1e6 * np.frombuffer(p, "<f4")).tobytes()),
    "stale": changed(round=0), "other": changed(client=9), "none": changed(examples=0),
    "too many": changed(examples=10**400),
    "problem": changed(problem="out of memory\n" * 999), "NaN loss": changed(metrics={"loss": float("nan")}),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_clients_that_fail_or_lie_are_left_out(federation, lie):
    records = []
    tampered = rounds_of(federation, grid=Tampering(federation[1], {2: LIES[lie]}), records=records, rounds=1)
    tampered.fit()
    (happened,) = records
    assert [each["client"] for each in happened.clients] == [0, 1, 3]
    assert list(happened.left_out) == ["2"] and 0 < len(happened.left_out["2"]) < 400
    assert "\n" not in happened.left_out["2"]
    without = rounds_of(federation, rounds=1)
    without.settings = replace(without.settings)
    object.__setattr__(without.settings, "drawn", lambda number: [0, 1, 3])
    without.fit()
    assert same(tampered.state()[0], without.state()[0])


def test_a_client_with_something_left_to_learn_is_believed(federation):
    """Long beside changes of clients that know their examples by heart, as in a round before; a resumed run knows."""

    def scaled(scale):
        return changed(lambda p: (np.float32(scale) * np.frombuffer(p, "<f4")).tobytes())

    def grid(other):
        return Tampering(federation[1], dict.fromkeys((0, 1, 3), scaled(1e-3)) | {2: scaled(other)})

    for other, believed in ((1, True), (1e3, False)):
        first, records = rounds_of(federation, rounds=1), []
        first.fit()
        resumed = rounds_of(federation, grid=grid(other), records=records, rounds=2)
        resumed.restore(*first.state())
        resumed.fit()
        assert [each["client"] for each in records[0].clients] == ([0, 1, 2, 3] if believed else [0, 1, 3])
    alone = rounds_of(federation, grid=grid(1), records=records, rounds=1)
    alone.fit()
    assert "median of earlier rounds" in records[1].left_out["2"], "there was no round with such changes"


def left_out(lengths, *rounds):
    """The clients whose changes are too long, for each round of lengths by client."""
    return [sorted(lengths.too_long(dict(enumerate(norms)))) for norms in rounds]


@pytest.mark.parametrize("clients", (1, 2, 3, 5))
def test_rounds_in_which_most_clients_lie_raise_no_limit(clients):
    """Nor do they let longer and longer lies in; the third such round of three is another majority."""
    honest, lie, everybody = [1.0] * clients, [1e6] * clients, list(range(clients))
    lengths = NormLimit(10.0)
    assert left_out(lengths, honest, honest, lie, honest, lie) == [[], [], everybody, [], everybody]
    assert left_out(NormLimit(10.0), lie, honest, lie, honest, lie)[4] == everybody, "also from the first round on"
    assert max(lengths.medians) == 10.0


def test_the_limit_falls_and_honest_clients_are_believed():
    """Medians halve in 25 rounds; the change of one that has something left to learn is 12 times as long."""
    lengths, shrinking = NormLimit(10.0), [0.5 ** (number / 25) for number in range(200)]
    assert not any(left_out(lengths, *([n, n, n, n, 12 * n] for n in shrinking))[10:])
    assert left_out(lengths, [shrinking[-1]] * 4 + [1.0]) == [[4]], "as long as in the first round"
    assert left_out(lengths, [0.0] * 4 + [shrinking[-1]]) == [[]], "beside clients that have learnt everything"
    assert len(lengths.medians) == 50


def test_a_checkpoint_is_restored_whole_or_not_at_all(federation):
    """Whatever is damaged, lacks or is another strategy's; a client's compressed weights are restored last."""

    def server():
        return rounds_of(federation, fl.FedAdam(), parts={"down": make_compressor("int8")}, average=0.5)

    tensors, position = server().state()
    tensors |= {f"average/{name}": federation[1].weights[name] for name in federation[0].changing}
    position |= {"round": 2, "medians": [3.0]}
    odd = [np.zeros((0, 3), np.float32), np.full((5, 3), np.nan, np.float32), np.zeros((2, 3, 4))]
    cases = [(tensors | {name: array}, position) for name in tensors for array in odd]
    cases += [({other: array for other, array in tensors.items() if other != name}, position) for name in tensors]
    cases += [(tensors, position | {"round": number}) for number in ("x", -1, 99, 1.5)]
    cases += [(tensors, position | {"medians": -1}), (tensors, {}), rounds_of(federation).state()]
    for damaged in cases:
        fresh = server()
        before = fresh.state()
        with pytest.raises(FormatError):
            fresh.restore(*damaged)
        assert same(fresh.state()[0], before[0]) and fresh.state()[1] == before[1]
    fresh.restore(tensors, position)
    assert fresh.state()[1] == position


def test_a_client_cannot_claim_to_matter_more_than_ten_others(federation):
    """The median of the clients' examples is 7, so a client counts for 70 at most, whatever it says."""
    found = []
    for claimed in (70, 1_000_000):
        grid = Tampering(federation[1], {2: changed(examples=claimed)})
        records = []
        rounds = rounds_of(federation, grid=grid, records=records, rounds=1)
        rounds.fit()
        assert [each["examples"] for each in records[0].clients][2] == 70
        found.append(rounds.state()[0])
    assert same(*found)


ROBUST = [fl.FedMedian(), fl.FedTrimmedAvg(), fl.Krum(), fl.MultiKrum(), fl.NormClipping()]
ATTACKS = {
    "sign flip": lambda change: -change, "scaled": lambda change: -9 * change,
    "random": lambda change: 3 * np.random.default_rng(2).normal(size=change.shape).astype(np.float32),
}  # fmt: skip


@pytest.mark.parametrize("strategy", ROBUST, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("bad", (0, 1, 3))
def test_strategies_that_withstand_bad_clients(strategy, attack, bad):
    """Some of ten clients are bad, and lie about their examples, too. The mean points elsewhere."""
    rng = np.random.default_rng(3)
    right = rng.normal(size=200).astype(np.float32)
    changes = [[right + rng.normal(size=200).astype(np.float32) / 2] for _ in range(10)]
    changes = [[ATTACKS[attack](c) for c in each] if n < bad else each for n, each in enumerate(changes)]
    examples = [10**9] * bad + [7] * (10 - bad)

    def cosine(strategy):
        (found,) = strategy.combined(changes, examples, float(np.linalg.norm(right)))
        return found @ right / np.linalg.norm(found) / np.linalg.norm(right)

    assert cosine(strategy) > 0.85
    assert not bad or cosine(fl.FedAvg()) < 0.2


@pytest.mark.parametrize("strategy", ROBUST, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("attack", ATTACKS)
def test_mixed_changes_go_as_far_as_honest_ones_where_clients_differ(strategy, attack):
    """Honest changes differ from each other by three times what they have in common."""
    rng = np.random.default_rng(3)
    right = rng.normal(size=2000).astype(np.float32)
    changes = [[right + 3 * rng.normal(size=2000).astype(np.float32)] for _ in range(10)]
    changes = [[ATTACKS[attack](c) for c in each] if n < 3 else each for n, each in enumerate(changes)]

    def progress(changes):
        (found,) = strategy.combined(changes, [1] * len(changes), 150.0)
        return found @ right / (right @ right)

    assert 0.55 < progress(fl.Nearest().mixed(changes, 1)) < 1.3


def test_nearest_changes_are_averaged():
    changes = [[np.float32([value]), np.full((2, 2), value, np.float32)] for value in (0, 1, 3, 10, 100)]
    mixed = fl.Nearest(bad=0.4).mixed(changes, 1)
    assert [each[0].item() for each in mixed] == pytest.approx([4 / 3, 4 / 3, 4 / 3, 14 / 3, 113 / 3])
    assert all(each[1].shape == (2, 2) and each[1].dtype == np.float32 for each in mixed)


def test_buckets_are_means_of_clients_drawn_anew():
    changes = [[np.float32([2**client])] for client in range(7)]
    sums = []
    for number in (1, 2):
        mixed = fl.Buckets(2, seed=5).mixed(changes, number)
        assert len(mixed) == 4
        sums.append([round(each[0].item() * size) for each, size in zip(mixed, (2, 2, 2, 1), strict=True)])
        assert sum(sums[-1]) == 127 and [bin(each).count("1") for each in sums[-1]] == [2, 2, 2, 1]
    assert sums[0] != sums[1] and fl.Buckets(2, seed=5).mixed(changes, 1) == fl.Buckets(2, seed=5).mixed(changes, 1)
    assert fl.make_mixing("none") is None
    for wrong in (lambda: fl.make_mixing("other"), lambda: fl.Buckets(0), lambda: fl.Nearest(0.5)):
        with pytest.raises(PlanError):
            wrong()


@pytest.mark.parametrize("share", (0.02, 0.1, 0.2, 0.5, 1.0))
def test_no_client_counts_for_more_than_a_share(share):
    rng = np.random.default_rng(1)
    for _ in range(50):
        examples = rng.integers(1, 10 ** rng.integers(1, 7), rng.integers(1, 15)).tolist()
        most = most_examples(examples, share)
        counted = [min(count, most) for count in examples]
        assert max(counted) / sum(counted) <= max(share, 1 / len(counted)) + 1e-12 or max(counted) == 1
        if most < max(examples) and most > 1:  # and no more is taken away than must be
            counted = [min(count, most + 1) for count in examples]
            assert max(counted) / sum(counted) > share


def test_a_federation_with_a_largest_share(federation):
    records = []
    grid = Tampering(federation[1], {2: changed(examples=10**6)})
    rounds_of(federation, grid=grid, records=records, rounds=1, largest_share=0.4).fit()
    counted = [each["examples"] for each in records[0].clients]
    assert counted[2] == floor(0.4 / 0.6 * (sum(counted) - counted[2]))


def test_clipping_follows_lengths_down():
    """Lengths fall a hundredfold; a change as long as the first ones counts as one of the last three rounds."""
    lengths, strategy = NormLimit(None), fl.NormClipping()
    for length in np.geomspace(1, 0.01, 12):
        lengths.too_long(dict.fromkeys(range(5), float(length)))
    one, other = np.float32([1, 0]), np.float32([0, 0.01])
    (found,) = strategy.combined([[one], [other]], [10**9, 7], lengths.running)
    np.testing.assert_allclose(found, [lengths.running / 2, 0.005], rtol=1e-5)
    assert lengths.running < 0.02


def test_strategies_that_see_each_change_refuse_privacy(federation):
    model = federation[0]
    settings, privacy = fl.ServerSettings(4, 1), Privacy(1.0, 1.0)
    for strategy, mixing in [*((each, None) for each in ROBUST), (fl.FedAvg(), fl.Buckets())]:
        with pytest.raises(PlanError, match="each client's change"):
            fl.Server(model, model.changing, settings, strategy, None, (X, Y), privacy=privacy, mixing=mixing)
    with pytest.raises(PlanError, match="below"):
        fl.Krum(bad=0.5)
    with pytest.raises(PlanError, match="fedmedian"):
        fl.make_strategy("fedmedian", 0.0, bad=0.1)


def test_a_round_without_updates_ends_the_run(federation):
    lost = Tampering(federation[1], dict.fromkeys(range(CLIENTS), LIES["gone"]))
    rounds = rounds_of(federation, grid=lost)
    with pytest.raises(RunError, match="Round 1"):
        rounds.fit()
    assert rounds.position.epoch == 0


def test_outcomes_are_kept_in_a_file(monkeypatch, tmp_path):
    outcomes = Outcomes()
    for client, outcome in ((3, b"three"), (1, "late"), (2, b""), (3, b"again"), (0, b"x" * (17 << 20))):
        outcomes[client] = outcome
    assert dict(outcomes.items()) == {3: b"again", 1: "late", 2: b"", 0: b"x" * (17 << 20)}
    outcomes[5] = b"after the end"
    assert (outcomes[3], outcomes[5], len(outcomes)) == (b"again", b"after the end", 5)

    def full(data):
        raise OSError(28, "No space left on device")

    outcomes._file.close()
    monkeypatch.setattr(outcomes, "_file", SimpleNamespace(seek=lambda *place: 0, write=full))
    with pytest.raises(RunError, match="TMPDIR"):
        outcomes[6] = b"more"


def test_memory_is_independent_of_the_number_of_clients(monkeypatch):
    monkeypatch.setattr(messages, "_IN_MEMORY", 1 << 18)
    network = el.Network("wide", (100,))
    network.add("dense", Dense(250))
    model = el.Model(network, seed=0).compile(el.SGD(RATE))

    class Work:
        def answer(self, data):
            asked = fl.Instruction.from_bytes(data)
            return fl.Reply(asked.round, asked.client, bytes(len(asked.payload)), 1, {"loss": 1.0}).to_bytes()

    def peak(clients):
        settings, test = fl.ServerSettings(clients, 1), (np.zeros((1, 100), np.float32), [0])
        server = fl.Server(model, model.changing, settings, fl.NormClipping(), fl.LocalGrid(Work()), test)
        tracemalloc.start()
        server.fit()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(2)
    few, many = peak(20), peak(120)
    assert many - few < 10 * 4 * 25_250, "100 replies more, and less than 10 in memory"


def test_late_clients_are_left_out(federation):
    class Slow:
        def answer(self, data):
            import time

            if fl.Instruction.from_bytes(data).client == 1:
                time.sleep(0.3)
            return federation[1].answer(data)

    records = []
    rounds_of(federation, grid=fl.LocalGrid(Slow()), records=records, rounds=1, deadline=0.25).fit()
    assert [each["client"] for each in records[0].clients] == [0, 2, 3]
    assert "late" in records[0].left_out["1"]


class Full(fl.ClientMemory):
    """A disk with no room for what client 1 keeps of round 2."""

    def save(self, client, number, arrays):
        if (client, number) == (1, 2):
            raise RunError("there is no room")
        super().save(client, number, arrays)


def test_a_full_disk_ends_the_round_and_leaves_nobody_out(federation, tmp_path):
    down = make_compressor("int8")

    def rounds(memory):
        grid = fl.LocalGrid(replace(federation[1], memory=memory, down=down))
        return rounds_of(federation, grid=grid, parts={"down": down})

    full, saved = rounds(Full(tmp_path / "clients")), []

    class Saver(Callback):
        def on_epoch_end(self, epoch, logs):
            saved.append(full.state())

    with pytest.raises(RunError, match="no room"):
        full.fit([Saver()])
    assert full.position.epoch == 1 and len(saved) == 1
    again, undisturbed = rounds(fl.ClientMemory(tmp_path / "clients")), rounds(fl.ClientMemory(tmp_path / "others"))
    again.restore(*saved[0])
    again.fit()
    undisturbed.fit()
    for name, weights in undisturbed.weights.items():
        np.testing.assert_array_equal(again.weights[name], weights)


def test_a_folder_of_clients_that_can_not_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file"):
        fl.ClientMemory(tmp_path / "file" / "clients").save(0, 1, {"a": np.zeros(3, np.float32)})


def test_counted_bytes_are_those_that_were_sent(federation):
    records, grid = [], Tampering(federation[1], {})
    rounds_of(federation, grid=grid, records=records, fraction=0.5).fit()
    assert sum(each.down["total"] for each in records) == grid.down
    assert sum(each.up["total"] for each in records) == grid.up
    values = FEATURES * CLASSES + CLASSES
    assert all(each.up["payload"] == each.down["payload"] == 2 * 4 * values for each in records)
    for each in records:
        assert all(client["planned"] == client["allocated"] > 0 for client in each.clients)


def test_counted_bytes_of_compressed_messages(federation, tmp_path):
    """Both ways: a change in 8 bits to clients that have the weights before it, all weights to the others."""
    up, down = make_compressor("topk:0.3+int8"), make_compressor("int8")
    clients = replace(federation[1], compressor=up, memory=fl.ClientMemory(tmp_path), down=down)
    records, grid = [], Tampering(clients, {})
    rounds_of(federation, grid=grid, records=records, parts={"compressor": up, "down": down}, fraction=0.5).fit()
    assert [sum(getattr(each, way)["total"] for each in records) for way in ("down", "up")] == [grid.down, grid.up]
    values, arrays = FEATURES * CLASSES + CLASSES, 2
    changed, all_weights = 5 + values + 4 * arrays, 5 + 4 * values
    seen = {client["down"]["payload"] for each in records for client in each.clients}
    assert seen == {changed, all_weights}
    assert all(client["up"]["payload"] < values for each in records for client in each.clients)


def test_error_feedback_needs_a_memory(federation, tmp_path):
    for compressor in (make_compressor("topk:0.1"), Partly(make_compressor("topk:0.1"), (False, True))):
        with pytest.raises(PlanError, match=r"memory=ClientMemory"):
            replace(federation[1], compressor=compressor)
        assert replace(federation[1], compressor=compressor, memory=fl.ClientMemory(tmp_path))
    assert replace(federation[1], compressor=Partly(make_compressor("int8"), (False, True)))


def test_rounds_return_their_history(federation):
    history = rounds_of(federation, rounds=2).fit()
    assert history.epoch == [0, 1] and len(history.history["val_accuracy"]) == 2
    assert history.history["clients"] == [CLIENTS, CLIENTS]


@pytest.mark.parametrize("ahead", [False, True])
def test_clients_train_from_what_they_left_out(federation, tmp_path, ahead):
    """One SGD step a round at the weights received, plus what was left out if the client goes ahead."""
    clients = federation[1]
    compressor = make_compressor("topk:0.1" + "+ahead" * ahead)
    client = replace(clients, compressor=compressor, memory=fl.ClientMemory(tmp_path))
    weights, late = [clients.weights[name] for name in clients.names], [0.0, 0.0]
    payload, part = b"".join(array.tobytes() for array in weights), clients.examples.parts[1]
    for number in (1, 2, 3):
        reply = fl.Reply.from_bytes(client.answer(fl.Instruction(number, 1, payload).to_bytes()))
        sent = compressor.decode(reply.payload, clients.shapes)
        begun = {name: w + ahead * kept for name, w, kept in zip(clients.names, weights, late, strict=True)}
        slope = gradient(begun, np.float64(X[part]), Y[part])
        late = [kept - RATE * slope[n] - s for n, kept, s in zip(clients.names, late, sent, strict=True)]
        stored = client.memory.load(1, number + 1)
        for place, each in enumerate(late):
            np.testing.assert_allclose(stored[f"left out/{place}"], each, rtol=1e-4, atol=1e-6)


def test_an_interrupt_leaves_the_round_before(federation):
    class StopInTheSecond(Callback):
        def on_train_batch_end(self, batch, logs):
            if self.model.position.epoch == 1 and batch == 1:
                self.model.stop_training = True

    rounds = rounds_of(federation)
    rounds.fit([StopInTheSecond()])
    assert (rounds.position.epoch, rounds.position.step) == (1, 0)
    rounds.fit()
    whole = rounds_of(federation)
    whole.fit()
    assert same(rounds.state()[0], whole.state()[0])


class Augmented:
    """Examples that note the epochs they are asked for."""

    def __init__(self):
        self.shape, self.epochs = X.shape, []

    def __len__(self):
        return len(X)

    def __getitem__(self, indices):
        return X[indices]

    def at_epoch(self, epoch):
        self.epochs.append(epoch)
        return self


def test_examples_are_augmented_anew_in_each_round(federation):
    model, clients = federation
    source = Augmented()
    varied = replace(clients, examples=replace(clients.examples, x=source), epochs=2)
    weights = b"".join(clients.weights[name].tobytes() for name in model.changing)
    answer = fl.Reply.from_bytes(varied.answer(fl.Instruction(3, 1, weights).to_bytes()))
    assert not answer.problem and sorted(set(source.epochs)) == [4, 5]
