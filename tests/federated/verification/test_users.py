"""A small federation of users: its accuracy, and the contents of its messages."""

from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.experiments.verification import VerificationServer
from edgelearn.federated import (
    Clients,
    Examples,
    Instruction,
    LocalGrid,
    NoCompression,
    Reply,
    ServerSettings,
    verification,
)
from edgelearn.federated.privacy import Masks
from edgelearn.federated.strategy import Average
from edgelearn.federated.verification import PositivesAlone, code_of, make_verification_strategy, user_number
from edgelearn.ops import SGD, Dense, ReLU

USERS, SIZE = 4, 127


def network() -> el.Network:
    network = el.Network("points", (6,))
    network.add("hidden", Dense(32))
    network.add("relu", ReLU())
    network.add("verification", Dense(SIZE, use_bias=False))
    return network


class Listening(LocalGrid):
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
    strategy = make_verification_strategy(name, size=SIZE, rate=0.01)
    x, owners = np.concatenate(data), np.repeat(range(USERS), 20)
    examples = Examples(x, owners, [np.flatnonzero(owners == user) for user in range(USERS)])
    settings = ServerSettings(USERS, rounds, fraction, largest=None, validation_frequency=rounds, average=average)
    masks = Masks(settings.drawn) if masked else None
    model = el.Model(network(), seed=0).compile(SGD(1.0), strategy.loss)
    with model.trainer(batch_size=6) as trainer:
        users = Clients(trainer, dict(model.weights), examples, 1, 0, steps=1, masks=masks, strategy=strategy)
        grid = Listening(users)
        federation = VerificationServer(
            model, model.changing, settings, strategy, grid, (x, owners), masks, privacy=masks
        )  # fmt: skip
        federation.fit()
    tables = [verification.scores(model.predict(each), federation.vectors) for each in data]
    return SimpleNamespace(rounds=federation, data=data, messages=grid.messages, tables=tables)


def guess(data: bytes, rounds) -> np.ndarray:
    """The codeword that the change of the last layer points to: hidden values are at least 0, behind a ReLU."""
    arrays = NoCompression().decode(Reply.from_bytes(data).payload, rounds.shapes)
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
        ({u: Instruction.from_bytes(d).payload for u, d in sent.items()},
         {u: Reply.from_bytes(d).payload for u, d in replies.items()})
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
    seen, moved = [], PositivesAlone.moved

    def listening(self, vector, outputs):
        seen.append(outputs)
        return moved(self, vector, outputs)

    monkeypatch.setattr(PositivesAlone, "moved", listening)
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
        secret = np.packbits(bits[: code_of(SIZE).dimension]).tobytes()  # number and secret bits
        embedding = np.float32(x.mean(0))
        forbidden = [
            vector.tobytes(), np.float64(vector).tobytes(), np.int8(vector).tobytes(), bits.tobytes(),
            np.packbits(bits).tobytes(), secret, secret[4:], secret[::-1][:4],
            user_number(user).to_bytes(4, "little") + secret[4:], embedding.tobytes(), *(row.tobytes() for row in x),
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
        bits = np.unpackbits(np.frombuffer(Reply.from_bytes(data).payload, np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005
        with np.errstate(invalid="ignore", over="ignore"):
            assert abs(np.mean(guess(data, masked.rounds) == vector) - 0.5) < 0.25
    for name, weights in masked.rounds.weights.items():  # Adam divides by the size of changes, which is small for some
        np.testing.assert_allclose(weights, feduv.rounds.weights[name], atol=0.05)
    assert all(table[:, user].mean() > 0.8 for user, table in enumerate(masked.tables))


def test_masks_are_for_strategies_that_share_no_vectors():
    with pytest.raises(PlanError):
        federate("fedaws", 1, masked=True)
