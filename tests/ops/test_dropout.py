import numpy as np
import pytest

from edgelearn.ops import Dropout, SpatialDropout2D, Target
from edgelearn.ops.random import philox
from edgelearn.ops.tensor import RELU6

from .harness import AS_GPUS_TOO, SIZES, close

BIG = 0xFEDCBA9876543210  # a seed that no float holds


KNOWN = [  # counter, key, rounds, the published numbers
    ([0] * 4, 0, 10, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 4, 2**64 - 1, 10, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], 0x299F31D0A4093822, 10, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ([0] * 4, 0, 7, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ([0xFFFFFFFF] * 4, 2**64 - 1, 7, "5207ddc2 45165e59 4d8ee751 8c52f662"),
]


@pytest.mark.parametrize(("counter", "key", "rounds", "drawn"), KNOWN)
def test_known_answers(counter, key, rounds, drawn):
    assert philox(np.array(counter, np.uint32), key, rounds).tolist() == [int(word, 16) for word in drawn.split()]


def training(bench, seed: int = BIG, step: int = 2**31 + 5, seen: int = 0) -> None:
    """Have the workbench train, as a session does."""
    bench.training, bench.layer = bench.control(seed=seed, step=step, seen=seen), "drop"


def dropped(bench, op: Dropout, x: np.ndarray) -> np.ndarray:
    ty = bench.empty(x.shape)
    op.emit_forward(bench, [bench.put(x)], ty)
    bench.run()
    return bench.get(ty)


@AS_GPUS_TOO
@pytest.mark.parametrize("kind", (Dropout, SpatialDropout2D))
@pytest.mark.parametrize("channels", SIZES)
def test_forward_and_backward(bench, rng, kind, channels):
    op, shape, n = kind(0.3), (3, 5, channels), 2
    factors = op.factors("drop", shape, n, BIG, 2**31 + 5, first=7)
    assert set(np.unique(factors)) <= {0, 1 / 0.7}
    x, dy = rng.uniform(-3, 9, (n, *shape)), rng.standard_normal((n, *shape))
    training(bench, seen=7)
    close(dropped(bench, op, x), op.reference_forward([x], {}, factors))

    (dx,), _ = op.reference_backward([x], {}, dy, factors)
    tx, tdy, tdx = bench.put(x), bench.put(dy), bench.empty(x.shape)
    op.emit_backward(bench, [tx], None, tdy, [Target(tdx)])
    bench.run()
    close(bench.get(tdx), dx)
    op.emit_backward(bench, [tx], None, tdy, [Target(tdx, tx, RELU6, accumulate=True)])
    bench.run()
    close(bench.get(tdx), dx + dx * ((x > 0) & (x < 6)))


@pytest.mark.parametrize("channels", SIZES)
def test_nothing_is_dropped_outside_training(bench, rng, channels):
    x = np.float32(rng.standard_normal((3, channels)))
    assert (dropped(bench, Dropout(0.9), x) == x).all()


def test_micro_batches_make_no_difference(bench):
    x, op = np.ones((5, 40)), Dropout(0.5)
    training(bench)
    whole = dropped(bench, op, x)
    parts = []
    for first, last in ((0, 2), (2, 4), (4, 5)):
        training(bench, seen=first)
        parts.append(dropped(bench, op, x[first:last]))
    assert (np.concatenate(parts) == whole).all()


def test_every_part_of_the_counter_counts():
    def drawn(layer="a", seed=1, step=1, first=0):
        return Dropout(0.5).factors(layer, (64,), 1, seed, step, first)

    others = [drawn("b"), drawn(seed=2), drawn(seed=1 + 2**32), drawn(step=2), drawn(first=1)]
    assert all((other != drawn()).any() for other in others)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_rate(rate):
    factors = Dropout(rate).factors("a", (1000,), 100, 0, 1)
    deviation = (rate * (1 - rate) / factors.size) ** 0.5
    assert abs((factors == 0).mean() - rate) < 5 * deviation
    columns = (factors == 0).mean(0)
    assert abs(np.corrcoef(factors[:, :-1].ravel(), factors[:, 1:].ravel())[0, 1]) < 5 / factors.size**0.5
    assert columns.min() > rate - 6 * (rate * (1 - rate) / 100) ** 0.5


def test_rate_zero_changes_nothing(bench, rng):
    training(bench)
    x = np.float32(rng.standard_normal((2, 3, 3, 5)))
    assert (dropped(bench, Dropout(0.0), x) == x).all()


def test_whole_channels_are_dropped():
    factors = SpatialDropout2D(0.5).factors("a", (4, 6, 33), 50, 0, 1)
    assert factors.shape == (50, 1, 1, 33) and set(np.unique(factors)) == {0, 2}
