from math import ceil, log2

import numpy as np
import pytest

from edgelearn.errors import FormatError, NonFiniteError, PlanError, UsageError
from edgelearn.federated import compression

SHAPES = [(3, 3, 1, 64), (64,), (), (40, 601), (0, 5), (1,)]
NAMES = ("float32", "int8", "topk:0.01", "topk:0.01+int8", "topk:0.15+sign")


def update(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.float32(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 2)) for shape in SHAPES]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def sent(compressor, arrays: list[np.ndarray], rng: np.random.Generator | None = None) -> list[np.ndarray]:
    """The arrays as their receiver has them."""
    return compressor.decode(compressor.encode(arrays, rng or generator(), {}), [array.shape for array in arrays])


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, 3, 14])


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(name):
    compressor, arrays = compression.make_compressor(name), update(1)
    data = compressor.encode(arrays, generator(), {})
    decoded = compressor.decode(data, SHAPES)
    assert [(a.shape, a.dtype) for a in decoded] == [(shape, np.float32) for shape in SHAPES]
    assert compressor.encode(update(1), generator(), {}) == data  # the same draws, the same bytes
    if name == "float32":
        assert all(np.array_equal(a, b) for a, b in zip(decoded, arrays, strict=True))


@pytest.mark.parametrize(
    "name, most",
    [("float32", 1), ("int8", 0.26), ("topk:0.01", 0.0131), ("topk:0.01+int8", 0.0055), ("topk:0.15+sign", 0.026)],
)
def test_bytes(name, most):
    data = compression.make_compressor(name).encode(update(1), generator(), {})
    assert len(data) <= most * 4 * flat(update(1)).size


def test_warm_up():
    """Each stage of three rounds sends a quarter of the entries of the one before; both sides know it by the round."""
    compressor, state, sizes, total = compression.make_compressor("topk:0.01+warmup:3"), {}, [], 0
    whole = flat(update(1))
    for number in range(1, 14):
        each = compression.at_round(compressor, number)
        received = flat(each.decode(each.encode(update(1), generator(), state), SHAPES))
        sizes.append(np.count_nonzero(received))
        total = total + received
    shares = (4, 4, 4, 16, 16, 16, 64, 64, 64, 100, 100, 100, 100)
    assert sizes == [ceil(whole.size / share) for share in shares]
    late = flat([state[f"left out/{number}"] for number in range(len(SHAPES))])
    np.testing.assert_allclose(total + late, 13 * whole, rtol=1e-4, atol=1e-4)  # nothing is lost, only late
    assert compression.at_round(compression.make_compressor("int8"), 5) == compression.make_compressor("int8")


def test_a_client_may_start_ahead_with_what_it_left_out():
    plain, ahead = (compression.make_compressor(f"topk:0.01{more}") for more in ("", "+warmup:3+ahead"))
    shapes, state, received = SHAPES, {}, update(2)
    for compressor in (compression.NoCompression(), plain):
        begun = compression.start_of(compressor, received, state)
        assert all(a is b for a, b in zip(begun, received, strict=True))
        plain.encode(update(1), generator(), state)
    exact = compression.Partly(compression.at_round(ahead, 20), (False,) * (len(shapes) - 1) + (True,))
    for number, (begun, array) in enumerate(zip(compression.start_of(exact, received, state), received, strict=True)):
        late = state[f"left out/{number}"] if number < len(shapes) - 1 else 0
        np.testing.assert_array_equal(begun, array + late)


def test_int8_is_right_on_average():
    arrays, draws = [np.float32([0.3, -0.011, 1.27, 0, -1.27])], 4000
    rng = generator()
    mean = sum(sent(compression.Int8(), arrays, rng)[0] for _ in range(draws)) / draws
    np.testing.assert_allclose(mean, arrays[0], atol=4 * 0.005 / np.sqrt(draws))  # a deviation is at most 0.005


def test_int8_is_off_by_less_than_a_step():
    arrays = update(2)
    for a, b in zip(arrays, sent(compression.Int8(), arrays), strict=True):
        assert np.abs(a - b).max(initial=0) <= np.abs(a).max(initial=0) / 127 * (1 + 1e-5)


def test_top_k_sends_the_largest_and_of_equal_ones_the_first():
    values = flat(update(3))
    largest = np.argsort(-np.abs(values), kind="stable")[: ceil(0.01 * len(values))]
    expected = np.zeros_like(values)
    expected[largest] = values[largest]
    assert np.array_equal(flat(sent(compression.TopK(0.01), update(3))), expected)
    (decoded,) = sent(compression.TopK(0.5), [np.float32([1, 2, 1, 1])])
    assert decoded.tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("limit, count", [(1, 1), (7, 7), (100, 1), (1000, 37), (24202, 243), (5, 0), (0, 0)])
def test_indices(rng, limit, count):
    for places in (np.arange(count), limit - count + np.arange(count), np.sort(rng.permutation(limit)[:count])):
        data = compression.pack_indices(places, limit)
        assert len(data) <= compression.most_bytes(limit, count)
        assert compression.unpack_indices(data, limit, count).tolist() == places.tolist()


@pytest.mark.parametrize(
    "share, bits", [(0.001, 11.41), (0.01, 8.08), (0.05, 5.73), (0.1, 4.69), (0.15, 4.07), (0.2, 3.61)]
)
def test_indices_are_small(rng, share, bits):
    """No code can do with less than the entropy, `bits` an index on average, for indices drawn at random."""
    assert abs((-share * log2(share) - (1 - share) * log2(1 - share)) / share - bits) < 0.005
    limit, count = 1_000_000, int(share * 1_000_000)
    places = np.sort(rng.choice(limit, count, replace=False))
    assert bits * 0.99 < len(compression.pack_indices(places, limit)) * 8 / count < bits * 1.03


def test_the_most_bytes_of_indices():
    """Indices take most bytes if the first one is as large as can be, and its gap fills all its low bits' steps."""
    for limit, count in ((1000, 37), (23050, 4000), (64, 1)):
        last = limit - count
        places = np.arange(count) + (last - last % (1 << compression.low_bits(limit, count)))
        assert len(compression.pack_indices(places, limit)) == compression.most_bytes(limit, count)


def test_damaged_indices_are_refused(rng):
    refused = 0
    for _ in range(300):
        data = rng.bytes(int(rng.integers(compression.most_bytes(1000, 37) + 1)))
        try:
            places = compression.unpack_indices(data, 1000, 37)
            assert len(places) == 37 and (np.diff(places) > 0).all() and places[-1] < 1000
            assert compression.pack_indices(places, 1000) == data
        except FormatError:
            refused += 1
    assert refused > 200
    good = compression.pack_indices(np.arange(0, 1000, 30), 1000)
    for damaged in (good[:-1], good + b"\0", b"", good + b"\1"):
        with pytest.raises(FormatError):
            compression.unpack_indices(damaged, 1000, 34)


def test_signs_with_a_mean_for_each_array():
    """Sparse ternary compression: of each array, what is sent has its sign and the mean size of what is sent."""
    arrays = update(4)
    values = flat(arrays)
    chosen = np.zeros(len(values), bool)
    chosen[np.argsort(-np.abs(values), kind="stable")[: ceil(0.15 * len(values))]] = True
    decoded = sent(compression.TopK(0.15, compression.Signs()), arrays)
    ends = np.cumsum([a.size for a in arrays])
    for array, found, end in zip(arrays, decoded, ends, strict=True):
        mine = chosen[end - array.size : end].reshape(array.shape)
        mean = np.abs(np.float64(array[mine])).mean() if mine.any() else 0
        np.testing.assert_allclose(found, np.where(mine, np.sign(array) * mean, 0), rtol=1e-6)


@pytest.mark.parametrize("name", ("topk:0.1", "topk:0.1+int8", "topk:0.2+sign"))
def test_error_feedback_loses_nothing(name):
    """The entries sent and the entries kept add up to all updates."""
    compressor, state, totals = compression.make_compressor(name), {}, [np.zeros(shape) for shape in SHAPES]
    for seed in range(30):
        data = compressor.encode(update(1), generator(seed), state)
        totals = [total + a for total, a in zip(totals, compressor.decode(data, SHAPES), strict=True)]
    kept = [state[f"left out/{number}"] for number in range(len(SHAPES))]
    for total, rest, a in zip(totals, kept, update(1), strict=True):
        np.testing.assert_allclose(total + rest, 30 * a, atol=1e-4 * np.abs(a).max(initial=0) + 1e-6)


def test_names():
    assert isinstance(compression.make_compressor("float32"), compression.NoCompression)
    assert compression.make_compressor("topk:0.15+sign+ahead") == compression.ErrorFeedback(
        compression.TopK(0.15, compression.Signs()), ahead=True
    )
    assert compression.make_compressor("topk:0.02+int8") == compression.ErrorFeedback(
        compression.TopK(0.02, compression.Int8())
    )


WEIGHTS = [(30, 20), (17,)]


def server_weights(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.float32(rng.standard_normal(shape)) for shape in WEIGHTS]


@pytest.mark.parametrize("compressor", (compression.Int8(), compression.TopK(0.05)))
def test_clients_have_the_same_bits(compressor):
    server = compression.Downlink(compressor, server_weights(0))
    states, sizes = [{}, {}], []
    for number in range(5):
        server.advance(server_weights(number), np.random.default_rng(number))
        for who, state in enumerate(states):
            if who == 1 and number == 2:
                continue  # misses a round
            data = server.message(who)
            sizes.append((who, number, len(data)))
            received = compression.receive(compressor, data, WEIGHTS, state)
            assert all(np.array_equal(a, b) for a, b in zip(received, server.arrays, strict=True))
    whole = 5 + 4 * sum(np.prod(shape) for shape in WEIGHTS)
    assert {(who, number) for who, number, size in sizes if size == whole} == {(0, 0), (1, 0), (1, 3)}


def test_what_is_left_out_comes_later():
    server, target = compression.Downlink(compression.TopK(0.1), server_weights(0)), server_weights(1)
    for number in range(10):
        server.advance(target, np.random.default_rng(number))
    assert all(np.abs(a - b).max() < 1e-6 for a, b in zip(server.arrays, target, strict=True))


def test_a_restored_server_sends_the_same():
    first, second = (compression.Downlink(compression.Int8(), server_weights(0)) for _ in range(2))
    first.advance(server_weights(1), np.random.default_rng(1))
    first.message(3)
    second.restore(first.state())
    messages = []
    for server in (first, second):
        server.advance(server_weights(2), np.random.default_rng(2))
        messages.append([server.message(3), server.message(4)])
    assert messages[0] == messages[1]


def test_a_change_of_unknown_weights_is_refused():
    server = compression.Downlink(compression.Int8(), server_weights(0))
    for number in range(2):
        server.advance(server_weights(number), np.random.default_rng(number))
        data = server.message(0)
    with pytest.raises(FormatError):
        compression.receive(compression.Int8(), data, WEIGHTS, {})
    server.forget(0)
    assert len(compression.receive(compression.Int8(), server.message(0), WEIGHTS, {})) == len(WEIGHTS)


def signs(mean: float, bits: bytes):
    return lambda: compression.Signs().decode(np.float32([mean]).tobytes() + bits, [(2,)])


def resized(name: str, change):
    compressor = compression.make_compressor(name)
    return lambda: compressor.decode(change(compressor.encode(update(1), generator(), {})), SHAPES)


def scaled(scale: float):
    return lambda: compression.Int8().decode(np.float32([scale]).tobytes() + b"\x7f\x7f", [(2,)])


LEFT_OUT = {"left out/0": np.zeros(4, np.float32)}
UNKNOWN = ("int4", "topk", "topk:2", "topk:0", "topk:x", "topk:nan", "topk:0.1+", "topk:0.1+int4", "sign",
           "topk:0.1+int8+sign")  # fmt: skip
REFUSED = {
    **{f"a mean of {mean}": (signs(mean, b"\x80"), FormatError) for mean in (np.nan, np.inf, -1.0)},
    "bits that stand for nothing": (signs(1, b"\x81"), FormatError),
    **{f"a scale of {scale}": (scaled(scale), FormatError) for scale in (np.nan, np.inf, -1.0, 3e38)},
    **{f"{name}, {what}": (resized(name, change), FormatError) for name in NAMES for what, change in {
        "nothing": lambda data: b"", "cut": lambda data: data[:-1], "longer": lambda data: data + b"\0",
        "twice": lambda data: data * 2}.items()},
    **{f"NaN by {compressor}": (lambda c=compressor: sent(c, [np.float32([1, np.nan])]), NonFiniteError)
       for compressor in (compression.Int8(), compression.TopK(0.5), compression.TopK(0.5, compression.Signs()))},
    "what another network left out": (
        lambda: compression.ErrorFeedback(compression.Int8()).encode([np.ones(3, np.float32)], generator(), LEFT_OUT),
        FormatError),
    **{f"the name {name}": (lambda n=name: compression.make_compressor(n), (UsageError, PlanError))
       for name in UNKNOWN},
    **{f"the message {data}": (lambda d=data: compression.receive(compression.Int8(), d, WEIGHTS, {}), FormatError)
       for data in (b"", b"\x00", b"\x02\x01\x00\x00\x00", b"\x00\x01\x00\x00\x00abc")},
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    call, error = REFUSED[what]
    with pytest.raises(error):
        call()
