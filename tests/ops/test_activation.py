import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Dense, Epilogue, GradientTarget, ReLU

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("max_value", [None, 6])
@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, max_value, channels):
    check_plain(ReLU(max_value), bench, rng, (3, 5, channels))


@pytest.mark.parametrize("rows", SIZES)
def test_rows(bench, rng, rows):
    check_plain(ReLU(), bench, rng, (33,), n=rows)


@pytest.mark.parametrize(("max_value", "derivative"), [(None, [0, 1, 1]), (6, [0, 1, 0])])
def test_corners(bench, max_value, derivative):
    op, x = ReLU(max_value), np.array([[0.0, 3.0, 6.0]])
    tx, ty, tdx = bench.put(x), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_backward(bench, [tx], ty, bench.put(np.ones_like(x)), [GradientTarget(tdx)])
    bench.run()
    assert bench.get(tdx).tolist() == [derivative]


@pytest.mark.parametrize("op", [ReLU(), ReLU(6)])
def test_nan_goes_through(bench, op):
    """A NaN that an activation turned into 0 would let training go on with a broken layer."""
    x = np.array([[np.nan, 1.0, -1.0, np.inf, -np.inf]])
    tx, ty, tz = bench.put(x), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    kernel = bench.put(np.zeros((1, 5)))  # what is left is the shift, x itself
    Dense(5).emit_forward(bench, bench.put(np.ones((1, 1))), kernel, tz, Epilogue(None, tx, op.code))
    bench.run()
    for t in (ty, tz):
        assert np.array_equal(bench.get(t), np.clip(x, 0, op.max_value), equal_nan=True)


def test_other_maxima():
    with pytest.raises(ShapeError, match="None or 6"):
        ReLU(4)
