import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import GlobalMaxPooling2D, Max, Mean, Sum

from .harness import SIZES, close
from .plain import check_plain

KINDS = pytest.mark.parametrize("kind", (Mean, Sum, Max))
AXES = (1, 2, 3, (1, 2), (1, 3), (2, -1), (1, 2, 3))


@KINDS
@pytest.mark.parametrize("channels", (1, 15, 33))
@pytest.mark.parametrize("axis", AXES)
def test_axes(bench, rng, kind, axis, channels):
    check_plain(kind(axis), bench, rng, (5, 7, channels))
    if axis != (1, 2, 3):
        check_plain(kind(axis, keepdims=False), bench, rng, (5, 7, channels))


@pytest.mark.parametrize("axis", (1, 2))
@pytest.mark.parametrize("size", SIZES)
def test_rows_and_columns(bench, rng, axis, size):
    check_plain(Mean(axis), bench, rng, (size, 3, 17), n=3)
    check_plain(Mean(axis), bench, rng, (3, size, 17), n=1)


@KINDS
@pytest.mark.parametrize(("axis", "shape"), [(1, (33,)), (2, (5, 33)), (1, (5, 33)), ((2, 4), (2, 3, 4, 5)), (1, (1,))])
def test_ranks(bench, rng, kind, axis, shape):
    check_plain(kind(axis), bench, rng, shape)


@pytest.mark.parametrize("channels", SIZES)
def test_global_maximum(bench, rng, channels):
    check_plain(GlobalMaxPooling2D(), bench, rng, (5, 7, channels))


@pytest.mark.parametrize("axis", ((1, 2), 3, (1, 2, 3)))
def test_equal_maxima_share_the_gradient(bench, rng, axis):
    check_plain(Max(axis), bench, rng, (4, 5, 33), whole=True)


def test_a_nan_stays(bench):
    x = np.arange(12.0).reshape(1, 2, 3, 2)
    x[0, 1, 0, 1] = np.nan
    ty = bench.empty((1, 2))
    GlobalMaxPooling2D().emit_forward(bench, [bench.put(x)], ty)
    bench.run()
    assert np.array_equal(bench.get(ty), [[10, np.nan]], equal_nan=True)


def test_long_sums_keep_their_digits(bench, rng):
    x = np.float32(rng.uniform(0, 1, (1, 700, 90, 3)))
    ty = bench.empty((1, 1, 1, 1))
    Sum((1, 2, 3)).emit_forward(bench, [bench.put(x)], ty)
    bench.run()
    close(bench.get(ty), x.sum((1, 2, 3), np.float64, keepdims=True), 1e-6)


@pytest.mark.parametrize(
    ("op", "shape"),
    [(Mean(0), (3, 4, 5)), (Mean(4), (3, 4, 5)), (Mean((1, 1)), (3, 4)), (Mean((1, 2), False), (3, 4)),
     (Mean(()), (3, 4)), (Max(-3), (5, 6)), (GlobalMaxPooling2D(), (5, 6))],
)  # fmt: skip
def test_axes_that_there_are_not(op, shape):
    with pytest.raises(ShapeError):
        op.output_shape(shape)
