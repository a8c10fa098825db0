import numpy as np
import pytest

from edgelearn.errors import FormatError
from edgelearn.federated.compression import Downlink, Int8, TopK, receive

SHAPES = [(30, 20), (17,)]


def weights(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.float32(rng.standard_normal(shape)) for shape in SHAPES]


@pytest.mark.parametrize("compressor", (Int8(), TopK(0.05)))
def test_clients_have_the_same_bits(compressor):
    server = Downlink(compressor, weights(0))
    states, sizes = [{}, {}], []
    for number in range(5):
        server.advance(weights(number), np.random.default_rng(number))
        for who, state in enumerate(states):
            if who == 1 and number == 2:
                continue  # misses a round
            data = server.message(who)
            sizes.append((who, number, len(data)))
            received = receive(compressor, data, SHAPES, state)
            assert all(np.array_equal(a, b) for a, b in zip(received, server.arrays, strict=True))
    whole = 5 + 4 * sum(np.prod(shape) for shape in SHAPES)
    assert {(who, number) for who, number, size in sizes if size == whole} == {(0, 0), (1, 0), (1, 3)}


def test_what_is_left_out_comes_later():
    server, target = Downlink(TopK(0.1), weights(0)), weights(1)
    for number in range(10):
        server.advance(target, np.random.default_rng(number))
    assert all(np.abs(a - b).max() < 1e-6 for a, b in zip(server.arrays, target, strict=True))


def test_a_restored_server_sends_the_same():
    first, second = (Downlink(Int8(), weights(0)) for _ in range(2))
    first.advance(weights(1), np.random.default_rng(1))
    first.message(3)
    second.restore(first.state())
    messages = []
    for server in (first, second):
        server.advance(weights(2), np.random.default_rng(2))
        messages.append([server.message(3), server.message(4)])
    assert messages[0] == messages[1]


def test_a_change_of_unknown_weights_is_refused():
    server = Downlink(Int8(), weights(0))
    for number in range(2):
        server.advance(weights(number), np.random.default_rng(number))
        data = server.message(0)
    with pytest.raises(FormatError):
        receive(Int8(), data, SHAPES, {})
    server.forget(0)
    assert len(receive(Int8(), server.message(0), SHAPES, {})) == len(SHAPES)


@pytest.mark.parametrize("data", (b"", b"\x00", b"\x02\x01\x00\x00\x00", b"\x00\x01\x00\x00\x00abc"))
def test_other_bytes_are_refused(data):
    with pytest.raises(FormatError):
        receive(Int8(), data, SHAPES, {})
