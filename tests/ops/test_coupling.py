import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Coupling, Stream, Target

from .harness import SIZES, close

STEP = 2.0**-10


def values(rng, *shape: int) -> np.ndarray:
    """Halves between two steps among them."""
    v = rng.uniform(-40, 40, shape)
    v.flat[::3] = np.round(v.flat[::3] / STEP) * STEP
    v.flat[::7] = (np.round(v.flat[::7] / STEP) + 0.5) * STEP
    return np.float32(v).astype(np.float64)


@pytest.mark.parametrize("channels", SIZES)
def test_forward_inverse_and_backward(bench, rng, channels):
    shape, op, begin = (2, 3, 5, channels), Coupling(STEP), Stream(STEP)
    v, f, dy = values(rng, *shape), values(rng, *shape), rng.standard_normal(shape)
    tv, tx, tf, ty, tback = bench.put(v), bench.empty(shape), bench.put(f), bench.empty(shape), bench.empty(shape)
    begin.emit_forward(bench, [tv], tx)
    op.emit_forward(bench, [tx, tf], ty)
    op.emit_inverse(bench, ty, [tf], tback)
    bench.run()
    x = begin.reference_forward([v], {})
    assert np.array_equal(bench.get(tx), x)
    assert np.array_equal(bench.get(ty), op.reference_forward([x, f], {}))
    assert np.array_equal(bench.get(tback), x), "to the bit"
    tdy, targets = bench.put(dy), [bench.empty(shape) for _ in range(3)]
    op.emit_backward(bench, [tx, tf], ty, tdy, [Target(t) for t in targets[:2]])
    begin.emit_backward(bench, [tv], tx, tdy, [Target(targets[2])])
    bench.run()
    for expected, target in zip(op.reference_backward([x, f], {}, dy)[0] + [dy], targets, strict=True):
        close(bench.get(target), expected)


def test_streams_are_exact_up_to_two_to_the_24_steps(bench):
    """Steps from 2^22 on leave sums of floats no room for a fraction, then for odd numbers."""
    steps = np.float64([2**22, 2**22 + 1, 2**23 - 1, 2**23 + 1, 2**24 - 3, 2**22 + 0.5, 2**22 + 1.5, 2**21 + 0.25, 0.5])
    x = np.concatenate([steps, -steps]) * STEP
    f = np.float64([1, 0.5, 1, 2, 1, 3, 2.5, -1.5, 1.5] * 2) * STEP
    op, tf, tx, ty, tback = Coupling(STEP), bench.put(f), *(bench.empty(x.shape) for _ in range(3))
    Stream(STEP).emit_forward(bench, [bench.put(x)], tx)
    op.emit_forward(bench, [tx, tf], ty)
    op.emit_inverse(bench, ty, [tf], tback)
    bench.run()
    begun = Stream(STEP).reference_forward([np.float32(x).astype(np.float64)], {})
    assert np.array_equal(bench.get(tx), begun)
    assert np.array_equal(bench.get(ty), op.reference_forward([begun, f], {}))
    assert np.array_equal(bench.get(tback), begun)


def test_without_a_step(bench, rng):
    """Plain floats: what comes back is a rounding error away."""
    x, f = rng.standard_normal((2, 5, 33)), rng.standard_normal((2, 5, 33))
    op, tf, ty, tback = Coupling(0), bench.put(f), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [bench.put(x), tf], ty)
    op.emit_inverse(bench, ty, [tf], tback)
    bench.run()
    close(bench.get(ty), x + f)
    assert 0 < np.abs(bench.get(tback) - np.float32(x)).max() < 1e-6


@pytest.mark.parametrize("step", (-1.0, 0.3, 3.0))
def test_impossible_steps(step):
    for op in (Coupling, Stream):
        with pytest.raises(ShapeError):
            op(step)


def test_two_inputs():
    with pytest.raises(ShapeError, match="3"):
        Coupling().output_shape((4,), (4,), (4,))
    for other in (5,), (1,):
        with pytest.raises(ShapeError):
            Coupling().output_shape((4,), other)
