import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import MatMul, Traits

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("size", SIZES)
def test_columns(bench, rng, size):
    check_plain(MatMul(), bench, rng, (5, 7), (7, size))
    check_plain(MatMul(), bench, rng, (5, size), (size, 17))
    check_plain(MatMul(), bench, rng, (size, 3), (3, 2))


def test_of_several_heads(bench, rng):
    check_plain(MatMul(), bench, rng, (2, 9, 33), (2, 33, 18))
    check_plain(MatMul(), bench, rng, (2, 3, 4, 5), (2, 3, 5, 6), n=3)


def test_as_gpus_do(bench, rng):
    bench.traits = Traits(gpu=True, compute_units=1)
    check_plain(MatMul(), bench, rng, (2, 9, 33), (2, 33, 18))


@pytest.mark.parametrize(
    "shapes", [((3, 4), (3, 4)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((3, 4),)]
)
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(ShapeError, match="MatMul"):
        MatMul().output_shape(*shapes)


def test_multiply_adds():
    assert MatMul().flops((2, 9, 33), (2, 33, 18)) == 2 * 2 * 9 * 33 * 18
