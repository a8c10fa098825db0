import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Dense, Epilogue, ReLU, SiLU, Target

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("op", [ReLU(), ReLU(6), SiLU()])
@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, op, channels):
    check_plain(op, bench, rng, (3, 5, channels))


@pytest.mark.parametrize("op", [ReLU(), SiLU()])
@pytest.mark.parametrize("rows", SIZES)
def test_rows(bench, rng, op, rows):
    check_plain(op, bench, rng, (33,), n=rows)


def test_silu_far_from_zero(bench):
    """Where the exponential is too large or too small for float32."""
    op, x = SiLU(), np.float32([[-3e38, -200.0, -90.0, -87.1, -86.9, -20.0, 86.9, 87.1, 90.0, 200.0, 3e38]])
    x = x.astype(np.float64)
    tx, ty, tdx = bench.put(x), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_backward(bench, [tx], ty, bench.put(np.ones_like(x)), [Target(tdx)])
    bench.run()
    (dx,), _ = op.reference_backward([x], {}, np.ones_like(x))
    assert bench.get(ty) == pytest.approx(op.reference_forward([x], {}), rel=1e-5, abs=1e-30)
    assert bench.get(tdx) == pytest.approx(dx, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize(("max_value", "derivative"), [(None, [0, 1, 1]), (6, [0, 1, 0])])
def test_corners(bench, max_value, derivative):
    op, x = ReLU(max_value), np.array([[0.0, 3.0, 6.0]])
    tx, ty, tdx = bench.put(x), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_backward(bench, [tx], ty, bench.put(np.ones_like(x)), [Target(tdx)])
    bench.run()
    assert bench.get(tdx).tolist() == [derivative]


@pytest.mark.parametrize("op", [ReLU(), ReLU(6)])
def test_nan_goes_through(bench, op):
    """A NaN that an activation turned into 0 would let training go on with a broken layer."""
    x = np.array([[np.nan, 1.0, -1.0, np.inf, -np.inf]])
    tx, ty, tz = bench.put(x), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    kernel = bench.put(np.zeros((1, 5)))  # what is left is the shift, x itself
    Dense(5).emit_linear(bench, bench.put(np.ones((1, 1))), kernel, tz, Epilogue(None, tx, op.code))
    bench.run()
    for t in (ty, tz):
        assert np.array_equal(bench.get(t), np.clip(x, 0, op.max_value), equal_nan=True)


def test_silu_is_exact(bench):
    op, x = SiLU(), np.linspace(-30, 30, 100_000, dtype=np.float32).reshape(-1, 16).astype(np.float64)
    tx, ty = bench.put(x), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    bench.run()
    assert bench.get(ty) == pytest.approx(x / (1 + np.exp(-x)), rel=1e-6)


def test_silu_keeps_a_nan(bench):
    ty = bench.empty((1, 3))
    SiLU().emit_forward(bench, [bench.put(np.array([[np.nan, 1.0, np.inf]]))], ty)
    bench.run()
    assert np.isnan(bench.get(ty)[0, 0]) and bench.get(ty)[0, 2] == np.inf


def test_other_maxima():
    with pytest.raises(ShapeError):
        ReLU(4)
