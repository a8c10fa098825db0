"""A small federation of users: its accuracy, and the contents of its messages."""

import os
import stat
from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn import federated as fl
from edgelearn.data.features import load_features
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError, FormatError, PlanError, ShapeError
from edgelearn.experiments.verification import FRONT_END, VerificationServer
from edgelearn.federated import verification
from edgelearn.federated.privacy import Masks
from edgelearn.federated.strategy import Average
from edgelearn.federated.verification import warm_up_threshold as threshold
from edgelearn.interop import safetensors
from edgelearn.ops import SGD, Dense, ReLU
from tests.networks import chain


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


MESSAGE = 0x123456789ABCDEF0
# Codewords of the messages 1 and MESSAGE by galois 0.4.11; that of 1 is the generator polynomial.
CHECKED: dict[int, tuple[str, str]] = {
    127: ("a1ab815bc7ec8025", "91a2b3c4d5e6f78632dbda5dde8ecc2"),
    255: (
        "140a722a1a468d36d87a25364e685922a1e56fd1a478c1d",
        "123456789abcdef0cccde439f90d1f53d54e161c42349646ed757a6b682f50",
    ),
    511: (
        "1bd14f93f5736aff6a9f8aa73a02856842b2ea071ad9bdc0d11de9842fbdc0459c1024bfb0e5dfbd44b01d21df55a5c18035aa69e3680621",
        "123456789abcdef01281ede050f4efb409e411688315a0133e2d7f1dbb22fdcdfefed597cacef8e708940fe3eba42e17615edbde83b9cdb7b5b057f89516952",
    ),
}


def as_int(bits: np.ndarray) -> int:
    return int("".join(map(str, bits)), 2)


@pytest.mark.parametrize("length", CHECKED)
def test_codewords_checked_with_galois(length):
    code = verification.code_of(length)
    assert [as_int(code.encode(message)) for message in (1, MESSAGE)] == [int(word, 16) for word in CHECKED[length]]
    assert code.encode((1 << code.dimension) - 1).all()


@pytest.mark.parametrize("length", CHECKED)
def test_codewords_of_galois(length):
    galois = pytest.importorskip("galois")
    code, rng = verification.code_of(length), np.random.default_rng(length)
    theirs = galois.BCH(length, code.dimension)
    assert theirs.d == code.distance and int(theirs.generator_poly) == code.generator
    for bits in rng.integers(0, 2, (20, code.dimension)):
        assert np.array_equal(code.encode(as_int(bits)), np.array(theirs.encode(galois.GF2(bits))))


@pytest.mark.parametrize("length, largest", [(127, 0.670), (255, 0.538), (511, 0.316)])
def test_users_are_far_apart(length, largest):
    code, rng = verification.code_of(length), np.random.default_rng(0)
    users = np.stack([code.codeword(n, int(rng.integers(1 << code.secret_bits))) for n in range(200)])
    assert set(np.unique(users)) == {-1, 1} and users.dtype == np.float32
    assert verification.largest_correlation(users) <= code.correlation < largest
    assert code.secret_bits >= 32


def test_a_codeword_is_of_number_and_secret():
    code = verification.code_of(127)
    word = code.codeword(0xDEADBEEF, 0x12345678)
    assert as_int((word[:64] > 0).astype(int)) == 0xDEADBEEF12345678


@pytest.mark.parametrize("user", [(1 << 32, 0), (0, 1 << 32), (-1, 0), (0, -1)])
def test_too_many_bits(user):
    with pytest.raises(DataError):
        verification.code_of(127).codeword(*user)


def test_secrets_differ():
    code = verification.code_of(255)
    assert len({code.draw_secret() for _ in range(20)}) == 20


@pytest.mark.parametrize("design", [(127, 64, 23), (128, 64, 21), (255, 72, 59)])
def test_no_such_code(design):
    with pytest.raises(DataError):
        verification.BCHCode(*design)
    with pytest.raises(DataError):
        verification.code_of(63)


def test_random_codewords():
    again = [verification.random_codeword(511, np.random.default_rng(3)) for _ in range(2)]
    assert np.array_equal(*again) and set(again[0]) == {-1, 1}
    assert verification.random_codeword(511).shape == (511,) and not np.array_equal(
        verification.random_codeword(511), verification.random_codeword(511)
    )
    assert verification.signs(np.array([0, 1])).tolist() == [-1, 1]


def energy(w: np.ndarray, near: np.ndarray) -> float:
    """10 Σ -d² over the pairs of `near`."""
    return -10 * sum(np.square(w[i] - w[j]).sum() for i, row in enumerate(near) for j in row)


def test_a_step_follows_the_gradient(rng):
    w = verification.unit(rng.standard_normal((6, 4)))
    distances = np.square(w[:, None] - w).sum(-1) + 10 * np.eye(6)
    near, rate, step = np.argsort(distances, axis=1)[:, :2], 1e-3, 1e-6
    gradient = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        moved = np.zeros_like(w)
        moved[place] = step
        gradient[place] = (energy(w + moved, near) - energy(w - moved, near)) / (2 * step)
    np.testing.assert_allclose(
        verification.spread(w, rate, nearest=2), verification.unit(w - rate * gradient), atol=1e-6
    )


def test_spreading_moves_users_apart(rng):
    w = verification.unit(np.ones(32) + 0.1 * rng.standard_normal((12, 32)))
    assert (w @ w.T).min() > 0.9
    for _ in range(60):
        w = verification.spread(w, 0.002)
    assert np.allclose(np.linalg.norm(w, axis=1), 1, atol=1e-6) and (w @ w.T - np.eye(12)).max() < 0.3


def test_users_that_meet_are_parted_from_the_nearest_alone():
    """A step away from all others only takes their mean off: with mean 0, two users who are nearly alike stay so."""
    a, b = verification.unit(np.array([[1.0, 0.2], [1.0, -0.2]]))
    w = np.stack([a, -a, b, -b])
    np.testing.assert_allclose(verification.spread(w, 0.1, nearest=3), w, atol=1e-6)
    apart = verification.spread(w, 0.01, nearest=1)
    assert apart[0] @ apart[2] < a @ b - 0.1 and np.allclose(apart[::2], -apart[1::2], atol=1e-6)


def test_one_user_stays():
    assert verification.spread(np.array([[3.0, 4.0]]), 1.0).tolist() == [[np.float32(0.6), np.float32(0.8)]]


def test_spreading_needs_a_finite_matrix():
    for bad in (np.ones(3), np.full((2, 2), np.nan)):
        with pytest.raises(ShapeError):
            verification.spread(bad, 0.1)


def test_a_vector_turns_to_its_user(rng):
    outputs, strategy = rng.standard_normal((9, 128)) + 0.5, verification.PositivesAlone(vector_rate=0.5)
    moved = w = strategy.vector(3, 0)
    for _ in range(5):
        moved = strategy.moved(moved, outputs)
    assert fl.verification.scores(outputs, moved).mean() > fl.verification.scores(outputs, w).mean() + 0.05
    assert np.linalg.norm(moved) == pytest.approx(1, abs=1e-6)
    assert np.allclose(strategy.arranged(np.stack([w, moved])), np.stack([w, moved]), atol=1e-6)
    assert not np.allclose(verification.FedAwS(spread_rate=0.1).arranged(np.stack([w, moved])), np.stack([w, moved]))


@pytest.mark.parametrize("name", ("feduv", "random", "fedaws", "positives", "fixed", "softmax"))
def test_vectors(name):
    strategy = verification.make_verification_strategy(name, size=255)
    assert strategy.vector(2, 5).shape == (255,) and strategy.vector(2, 5).dtype == np.float32
    assert np.array_equal(strategy.vector(2, 5), strategy.vector(2, 5))
    assert not np.array_equal(strategy.vector(2, 5), strategy.vector(3, 5))
    outputs = np.random.default_rng(0).standard_normal((4, 255))
    losses, gradient = strategy.loss.reference(outputs, np.tile(strategy.vector(2, 5), (4, 1)))
    assert losses.shape == (4,) and gradient.shape == outputs.shape


def test_codewords_of_users_are_unlike():
    """Numbers that count up would share bits, and so would codewords."""
    words = np.stack([verification.FedUV().vector(user, 0) for user in range(50)])
    assert abs((words @ words.T / 127)[~np.eye(50, dtype=bool)].mean()) < 0.03


def test_a_user_may_be_a_number_of_numpy():
    assert np.array_equal(verification.FedUV().vector(np.int64(7), 0), verification.FedUV().vector(7, 0))


def test_unknown_strategys():
    with pytest.raises(PlanError):
        verification.make_verification_strategy("centre")
    with pytest.raises(DataError):
        verification.make_verification_strategy("feduv", size=128)
    with pytest.raises(PlanError):
        verification.make_verification_strategy("feduv", spread_rate=0.1)
    assert isinstance(
        verification.make_verification_strategy("positives", size=64, rate=None), verification.PositivesAlone
    )


@pytest.mark.parametrize("rate, expected", [(0.9, 0.1), (1.0, 0.0), (0.5, 0.5), (0.05, 0.9)])
def test_threshold_of_warm_up_scores(rng, rate, expected):
    assert threshold(rng.permutation(np.arange(10) / 10), rate) == pytest.approx(expected)


def test_threshold_needs_scores():
    for values, rate in (([], 0.9), ([np.nan], 0.9), ([0.5], 0.0), ([0.5], 1.1)):
        with pytest.raises(DataError):
            threshold(np.array(values), rate)


def recordings(rng, centre: np.ndarray, count: int, noise: float = 0.5) -> np.ndarray:
    return 3 * (centre + noise * rng.standard_normal((count, len(centre))))


def test_a_user_is_accepted_and_others_are_not(rng, tmp_path):
    own, other = rng.standard_normal((2, 40))
    user = verification.User.enrol(recordings(rng, own, 8))
    user.save(tmp_path / "me.user")
    loaded = verification.User.load(tmp_path / "me.user")
    assert np.array_equal(loaded.vector, user.vector) and loaded.threshold == user.threshold
    assert loaded.accepts(recordings(rng, own, 50)).mean() > 0.6
    assert not loaded.accepts(recordings(rng, other, 50)).any()
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "me.user").stat().st_mode) == 0o600


def test_enrolment_with_a_codeword(rng):
    word = verification.FedUV(127).vector(0, 0)
    outputs = recordings(rng, word, 10)
    user = verification.User.enrol(outputs, word, 0.8)
    assert np.array_equal(user.vector, word)
    assert user.accepts(outputs).sum() == 8
    np.testing.assert_allclose(user.scores(outputs), fl.verification.scores(outputs, word)[:, 0])


def test_too_few_recordings(rng):
    with pytest.raises(DataError):
        verification.User.enrol(rng.standard_normal((1, 4)))


def test_another_network(rng):
    with pytest.raises(FormatError):
        verification.User.enrol(rng.standard_normal((3, 4))).accepts(rng.standard_normal((2, 5)))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"vector": np.ones(3, np.float32)},
        {"vector": np.ones(3), "threshold": np.ones(1)},
        {"vector": np.float32([1, np.nan]), "threshold": np.ones(1)},
        {"vector": np.ones(3, np.float32), "threshold": np.array([np.nan])},
        {"vector": np.ones((3, 1), np.float32), "threshold": np.ones(1)},
    ],
)
def test_other_files(tmp_path, arrays):
    (tmp_path / "file").write_bytes(safetensors.to_bytes(arrays))
    with pytest.raises(FormatError):
        verification.User.load(tmp_path / "file")


def test_every_hidden_unit_learns():
    """With ReLU, many units are 0 for all voices from the start, and their gradient as well."""
    clips = embedded_words(2, 6, 2)
    x = load_features(clips, FRONT_END)[..., None]
    names, owners = np.unique(clips.speakers, return_inverse=True)
    strategy = verification.FedUV()
    vectors = np.stack([strategy.vector(user, 0) for user in range(len(names))])[owners]
    model = el.Model(verification.speaker_network(x.shape[1:]), seed=0).compile(el.SGD(1.0), strategy.loss)
    model.fit(x, vectors, epochs=1, batch_size=len(x))
    assert np.abs(model.weights["hidden/bias"]).min() > 1e-7


USERS, SIZE = 4, 127


def network() -> el.Network:
    return chain("points", (6,), hidden=Dense(32), relu=ReLU(), verification=Dense(SIZE, use_bias=False))


class Listening(fl.LocalGrid):
    """A grid that keeps the messages of all rounds."""

    def exchange(self, instructions, deadline, arrived):
        outcomes = super().exchange(instructions, deadline, arrived)
        self.messages = [*getattr(self, "messages", []), (instructions, outcomes)]
        return outcomes


def federate(name: str, rounds: int, masked: bool = False, fraction: float = 1.0, average: float = 0.0):
    """A federation that has ended: its rounds, users' data, messages, and scores of the data against all vectors."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((USERS, 6))
    data = [np.float32(centre + 0.3 * rng.standard_normal((20, 6))) for centre in centres]
    strategy = verification.make_verification_strategy(name, size=SIZE, rate=0.01)
    x, owners = np.concatenate(data), np.repeat(range(USERS), 20)
    examples = fl.Examples(x, owners, [np.flatnonzero(owners == user) for user in range(USERS)])
    settings = fl.ServerSettings(USERS, rounds, fraction, largest=None, validation_frequency=rounds, average=average)
    masks = Masks(settings.drawn) if masked else None
    model = el.Model(network(), seed=0).compile(SGD(1.0), strategy.loss)
    with model.trainer(batch_size=6) as trainer:
        users = fl.Clients(trainer, dict(model.weights), examples, 1, 0, steps=1, masks=masks, strategy=strategy)
        grid = Listening(users)
        federation = VerificationServer(
            model, model.changing, settings, strategy, grid, (x, owners), masks, privacy=masks
        )  # fmt: skip
        federation.fit()
    tables = [fl.verification.scores(model.predict(each), federation.vectors) for each in data]
    return SimpleNamespace(rounds=federation, data=data, messages=grid.messages, tables=tables)


def guess(data: bytes, rounds) -> np.ndarray:
    """The codeword that the change of the last layer points to: hidden values are at least 0, behind a ReLU."""
    arrays = fl.NoCompression().decode(fl.Reply.from_bytes(data).payload, rounds.shapes)
    return np.sign(arrays[rounds.names.index("verification/kernel")].sum(0))


@pytest.fixture(scope="module")
def feduv():
    return federate("feduv", 60)


def test_users_are_verified(feduv):
    for user, table in enumerate(feduv.tables):
        others = np.delete(table, user, axis=1)
        assert table[:, user].mean() > 0.8 and others.max() < table[:, user].min()


def payloads(messages):
    """The payloads of each round: (by user down, by user up)."""
    return [
        ({u: fl.Instruction.from_bytes(d).payload for u, d in sent.items()},
         {u: fl.Reply.from_bytes(d).payload for u, d in replies.items()})
        for sent, replies in messages
    ]  # fmt: skip


def test_fedaws_verifies_users():
    found = federate("fedaws", 60)
    assert all((table.argmax(1) == user).mean() > 0.9 for user, table in enumerate(found.tables))
    assert np.allclose(np.linalg.norm(found.rounds.own, axis=1), 1, atol=1e-6)
    sizes = {len(data) for sides in payloads(found.messages) for side in sides for data in side.values()}
    assert sizes == {4 * (6 * 32 + 32 + 32 * SIZE + SIZE)}  # the network, and the user's own embedding
    tensors, position = found.rounds.state()
    found.rounds.own = np.zeros_like(found.rounds.own)
    found.rounds.restore(tensors, position)
    assert np.array_equal(found.rounds.own, tensors["own"]) and found.rounds.own.any(1).all()


def test_embeddings_follow_the_weights_that_were_received(monkeypatch):
    """Both gradients are those at the received weights, as in the paper: after a step with a rate of 1 the network's
    outputs agree with the old embedding, which would then stay where it is."""
    seen, moved = [], verification.PositivesAlone.moved

    def listening(self, vector, outputs):
        seen.append(outputs)
        return moved(self, vector, outputs)

    monkeypatch.setattr(verification.PositivesAlone, "moved", listening)
    found = federate("positives", 1)
    received = el.Model(network(), seed=0).predict(np.concatenate(found.data))
    assert len(seen) == USERS
    for outputs in seen:
        assert np.abs(outputs[:, None] - received).max(-1).min(-1).max() < 1e-5


def test_users_who_were_not_drawn_have_no_embedding_yet():
    found = federate("fedaws", 1, fraction=0.5)
    assert found.rounds.own.any(1).sum() == 2
    drawn = found.rounds.strategy.vector(0, 0)
    assert [np.array_equal(v, drawn) for v in found.rounds.vectors].count(True) == (0 not in found.messages[0][0])


def test_embeddings_are_averaged_like_the_weights(monkeypatch):
    """The embeddings that are tested are averages; the server and the users keep the embeddings themselves. A user who
    was first drawn late has zeros before: they change the length of the average, and no score."""
    kept, add = [], Average.add
    monkeypatch.setattr(Average, "add", lambda self, arrays, number: [
        add(self, arrays, number), kept.append(arrays[-1].astype(np.float64))])  # fmt: skip
    found = federate("fedaws", 6, fraction=0.5, average=0.8)
    shares = 0.8 ** np.arange(5, -1, -1.0)
    mean = np.tensordot(shares / shares.sum(), kept, 1)
    known = mean.any(1)
    np.testing.assert_allclose(found.rounds.vectors[known], mean[known], atol=1e-6)
    assert np.array_equal(np.float32(kept[-1]), found.rounds.own)
    tensors, position = found.rounds.state()
    again, tested = found.rounds, found.rounds.vectors
    again.tested_own = again.own = np.zeros_like(again.own)
    again.restore(tensors, position)
    assert np.array_equal(again.vectors, tested) and np.array_equal(again.own, np.float32(kept[-1]))


def test_the_same_seed_gives_the_same_messages():
    assert payloads(federate("feduv", 2).messages) == payloads(federate("feduv", 2).messages)


def test_messages_hold_shared_weights_alone(feduv):
    size = 4 * sum(int(np.prod(shape)) for shape in feduv.rounds.shapes)
    assert not feduv.rounds.own.size
    for sent, replies in payloads(feduv.messages):
        assert {len(data) for data in (*sent.values(), *replies.values())} == {size}
        assert len(set(sent.values())) == 1  # every user gets the same


def test_no_message_holds_a_codeword_or_an_embedding(feduv):
    for user, (vector, x) in enumerate(zip(feduv.rounds.vectors, feduv.data, strict=True)):
        bits = (vector > 0).astype(np.uint8)
        secret = np.packbits(bits[: verification.code_of(SIZE).dimension]).tobytes()  # number and secret bits
        embedding = np.float32(x.mean(0))
        forbidden = [
            vector.tobytes(), np.float64(vector).tobytes(), np.int8(vector).tobytes(), bits.tobytes(),
            np.packbits(bits).tobytes(), secret, secret[4:], secret[::-1][:4],
            verification.user_number(user).to_bytes(4, "little") + secret[4:], embedding.tobytes(),
            *(row.tobytes() for row in x),
        ]  # fmt: skip
        for sent, replies in feduv.messages:
            for data in (*sent.values(), *replies.values()):
                assert not any(part in data for part in forbidden)


def test_what_a_server_can_guess_of_a_codeword(feduv):
    """The change of the last layer is a sum over recordings of (slope of the loss) x (hidden values), and the slope
    points along the codeword: whoever sees one user's change alone can guess most of its bits. The manual says so."""
    for user, vector in enumerate(feduv.rounds.vectors):
        assert np.mean(guess(feduv.messages[0][1][user], feduv.rounds) == vector) > 0.9


def test_masks_hide_codewords(feduv):
    """With secure aggregation a message says nothing: its bits look random, whatever is looked for in them."""
    masked = federate("feduv", 60, masked=True)
    for user, vector in enumerate(masked.rounds.vectors):
        data = masked.messages[0][1][user]
        bits = np.unpackbits(np.frombuffer(fl.Reply.from_bytes(data).payload, np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005
        with np.errstate(invalid="ignore", over="ignore"):
            assert abs(np.mean(guess(data, masked.rounds) == vector) - 0.5) < 0.25
    for name, weights in masked.rounds.weights.items():  # Adam divides by the size of changes, which is small for some
        np.testing.assert_allclose(weights, feduv.rounds.weights[name], atol=0.05)
    assert all(table[:, user].mean() > 0.8 for user, table in enumerate(masked.tables))


def test_masks_are_for_strategies_that_share_no_vectors():
    with pytest.raises(PlanError):
        federate("fedaws", 1, masked=True)
