"""What a small federation learns, and what its messages hold."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.federated.codewords import code_of, user_number
from edgelearn.federated.compressor import NoCompression
from edgelearn.federated.verification import (
    Participant,
    VerificationServer,
    VerificationSettings,
    make_method,
    run_rounds,
    scores,
)
from edgelearn.ops import SGD, Dense, ReLU

USERS, SIZE = 4, 127


def network() -> el.Network:
    network = el.Network("points", (6,))
    network.add("hidden", Dense(32))
    network.add("relu", ReLU())
    network.add("verification", Dense(SIZE, use_bias=False))
    return network


def federate(name: str, rounds: int, masked: bool = False):
    """(participants, server, all messages, final scores of users' own data against all vectors)."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((USERS, 6))
    data = [np.float32(centre + 0.3 * rng.standard_normal((20, 6))) for centre in centres]
    method, settings = (
        make_method(name, SIZE),
        VerificationSettings(rounds=rounds, recordings=6, rate=0.01, masked=masked),
    )
    model = el.Model(network(), seed=0).compile(SGD(1.0), method.loss)
    messages = []
    with model.trainer(batch_size=6) as trainer:
        participants = [Participant(user, x, method, settings, trainer, USERS) for user, x in enumerate(data)]
        server = VerificationServer(dict(model.weights), participants[0].names, method, settings)
        run_rounds(server, participants, lambda number, sent, replies: messages.append((sent, replies)))
    model.weights = server.weights
    vectors = np.stack([each.vector for each in participants])
    return participants, server, messages, [scores(model.predict(x), vectors) for x in data]


def guess(data: bytes, server: VerificationServer) -> np.ndarray:
    """The codeword that the change of the last layer points to: hidden values are at least 0, behind a ReLU."""
    shapes = [server.weights[name].shape for name in server.names]
    return np.sign(NoCompression().decode(data, shapes)[server.names.index("verification/kernel")].sum(0))


@pytest.fixture(scope="module")
def feduv():
    return federate("feduv", 60)


def test_users_are_verified(feduv):
    for user, table in enumerate(feduv[3]):
        others = np.delete(table, user, axis=1)
        assert table[:, user].mean() > 0.8 and others.max() < table[:, user].min()


def test_fedaws_verifies_users():
    _, server, messages, tables = federate("fedaws", 60)
    assert all((table.argmax(1) == user).mean() > 0.9 for user, table in enumerate(tables))
    assert set(server.vectors) == set(range(USERS))
    sizes = {len(data) for sent, replies in messages for data in (*sent.values(), *replies.values())}
    assert sizes == {4 * (6 * 32 + 32 + 32 * SIZE + SIZE)}  # the network, and the user's own embedding


def test_the_same_seed_gives_the_same_messages():
    assert federate("feduv", 2)[2] == federate("feduv", 2)[2]


def test_messages_hold_shared_weights_alone(feduv):
    participants, server, messages, _ = feduv
    shapes = [server.weights[name].shape for name in participants[0].names]
    size = 4 * sum(int(np.prod(shape)) for shape in shapes)
    assert not server.vectors
    for sent, replies in messages:
        assert {len(data) for data in (*sent.values(), *replies.values())} == {size}
        assert len(set(sent.values())) == 1  # every user gets the same


def test_no_message_holds_a_codeword_or_an_embedding(feduv):
    participants, _, messages, _ = feduv
    for each in participants:
        bits = (each.vector > 0).astype(np.uint8)
        secret = np.packbits(bits[: code_of(SIZE).dimension]).tobytes()  # number and secret bits
        embedding = np.float32(each.x.mean(0))
        forbidden = [
            each.vector.tobytes(), np.float64(each.vector).tobytes(), np.int8(each.vector).tobytes(), bits.tobytes(),
            np.packbits(bits).tobytes(), secret, secret[4:], secret[::-1][:4],
            user_number(each.number).to_bytes(4, "little") + secret[4:], embedding.tobytes(),
            *(row.tobytes() for row in each.x),
        ]  # fmt: skip
        for sent, replies in messages:
            for data in (*sent.values(), *replies.values()):
                assert not any(part in data for part in forbidden)


def test_what_a_server_can_guess_of_a_codeword(feduv):
    """The change of the last layer is a sum over recordings of (slope of the loss) x (hidden values), and the slope
    points along the codeword: whoever sees one user's change alone can guess most of its bits. The manual says so."""
    participants, server, messages, _ = feduv
    for each in participants:
        assert np.mean(guess(messages[0][1][each.number], server) == each.vector) > 0.9


def test_masks_hide_codewords(feduv):
    """With secure aggregation a message says nothing: its bits look random, whatever is looked for in them."""
    participants, server, messages, tables = federate("feduv", 60, masked=True)
    for each in participants:
        data = messages[0][1][each.number]
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005
        with np.errstate(invalid="ignore", over="ignore"):
            assert abs(np.mean(guess(data, server) == each.vector) - 0.5) < 0.25
    for name, weights in server.weights.items():  # Adam divides by the size of changes, which is small for some
        np.testing.assert_allclose(weights, feduv[1].weights[name], atol=0.05)
    assert all(table[:, user].mean() > 0.8 for user, table in enumerate(tables))


def test_masks_are_for_methods_that_share_no_vectors():
    with pytest.raises(PlanError):
        federate("fedaws", 1, masked=True)
