import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import GroupNormalization, LayerNormalization

from .harness import SIZES
from .normalized import check_weighted


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("axis", (-1, (2, 3), (-3, -2, -1)))
def test_layers(bench, rng, axis, channels):
    check_weighted(LayerNormalization(axis=axis), bench, rng, (3, 4, channels))


@pytest.mark.parametrize("shape", [(33,), (5, 17), (2, 3, 2, 18)])
def test_ranks(bench, rng, shape):
    check_weighted(LayerNormalization(), bench, rng, shape)
    check_weighted(GroupNormalization(groups=1), bench, rng, shape)


@pytest.mark.parametrize(("groups", "channels"), [(1, 33), (3, 33), (-1, 33), (2, 62), (5, 5), (4, 64), (32, 64)])
def test_groups(bench, rng, groups, channels):
    check_weighted(GroupNormalization(groups=groups), bench, rng, (5, 7, channels))


@pytest.mark.parametrize("center", (True, False))
@pytest.mark.parametrize("scale", (True, False))
def test_without_weights(bench, rng, scale, center):
    check_weighted(LayerNormalization(1e-5, center, scale), bench, rng, (3, 17))
    check_weighted(GroupNormalization(1e-5, center, scale, 3), bench, rng, (2, 3, 18))


def test_values_far_from_zero_keep_their_digits(bench, rng):
    x = np.float64(np.float32(1000 + rng.standard_normal((2, 40, 41, 20))))
    op, ty = GroupNormalization(1e-5, False, False, 1), bench.empty(x.shape)
    op.emit_forward(bench, [bench.put(x)], ty)
    bench.run()
    assert np.abs(bench.get(ty) - op.reference_forward([x], {})).max() < 1e-3


@pytest.mark.parametrize(
    "op", [GroupNormalization(groups=3), GroupNormalization(groups=0), LayerNormalization(axis=1),
           LayerNormalization(axis=()), LayerNormalization(axis=(1, 3)), LayerNormalization(axis=4)],
)  # fmt: skip
def test_arguments_that_do_not_fit(op):
    with pytest.raises(ShapeError):
        op.output_shape((2, 3, 8))


def test_epsilon_is_above_zero():
    with pytest.raises(ShapeError):
        LayerNormalization(0.0)
