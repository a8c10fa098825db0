import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import SpaceToDepth

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, channels):
    check_plain(SpaceToDepth(), bench, rng, (4, 6, channels))


@pytest.mark.parametrize("size", (1, 3))
def test_sizes(bench, rng, size):
    check_plain(SpaceToDepth(size), bench, rng, (6, 9, 5))


def test_inverse(bench, rng):
    x, op = np.float32(rng.standard_normal((2, 4, 6, 33))), SpaceToDepth()
    tx, ty, tback = bench.put(x), bench.empty((2, 2, 3, 132)), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_inverse(bench, ty, [], tback)
    bench.run()
    assert np.array_equal(bench.get(tback), x)


def test_order_of_channels():
    x = np.arange(8).reshape(1, 2, 2, 2)  # tf.nn.space_to_depth gives the same
    assert SpaceToDepth().reference_forward([x], {}).ravel().tolist() == list(range(8))


@pytest.mark.parametrize(("size", "shape"), [(2, (3, 4, 5)), (2, (4,)), (0, (4, 4, 4))])
def test_impossible(size, shape):
    with pytest.raises(ShapeError):
        SpaceToDepth(size).output_shape(shape)
