import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Transpose

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("axes", [(2, 1, 3), (3, 2, 1), (2, 3, 1), (1, -1, 2)])
def test_orders(bench, rng, axes, channels):
    check_plain(Transpose(axes), bench, rng, (4, 5, channels))


@pytest.mark.parametrize(("axes", "shape"), [((1,), (17,)), ((2, 1), (33, 5)), ((1, 2, 4, 3), (2, 3, 17, 2)),
                                             ((4, 3, 2, 1, 5), (2, 3, 2, 3, 18))])  # fmt: skip
def test_ranks(bench, rng, axes, shape):
    check_plain(Transpose(axes), bench, rng, shape)


def test_inverse(bench, rng):
    x, op = np.float32(rng.standard_normal((2, 4, 6, 33))), Transpose((3, 1, 2))
    tx, ty, tback = bench.put(x), bench.empty((2, 33, 4, 6)), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_inverse(bench, ty, [], tback)
    bench.run()
    assert np.array_equal(bench.get(ty), x.transpose(0, 3, 1, 2))
    assert np.array_equal(bench.get(tback), x)


@pytest.mark.parametrize("axes", [(1, 2), (1, 2, 2), (0, 1, 2), (1, 2, 4), (-4, 2, 3), (1, 1, -1)])
def test_axes_that_there_are_not(axes):
    with pytest.raises(ShapeError):
        Transpose(axes).output_shape((3, 4, 5))
