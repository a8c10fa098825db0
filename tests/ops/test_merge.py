import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Add, Concatenate

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_add(bench, rng, channels):
    check_plain(Add(), bench, rng, *[(3, 5, channels)] * 2)


@pytest.mark.parametrize("inputs", [3, 5])
def test_add_more(bench, rng, inputs):
    check_plain(Add(), bench, rng, *[(33,)] * inputs)


@pytest.mark.parametrize("channels", SIZES)
def test_concatenate(bench, rng, channels):
    check_plain(Concatenate(), bench, rng, (3, 2, channels), (3, 2, 20), (3, 2, channels))


@pytest.mark.parametrize("sizes", [(16, 32), (1, 2, 3, 4), (15, 1, 16, 17), (5, 65, 63)])
def test_concatenate_vectors(bench, rng, sizes):
    check_plain(Concatenate(), bench, rng, *[(size,) for size in sizes], n=3)


@pytest.mark.parametrize("op", [Add(), Concatenate()])
@pytest.mark.parametrize("shapes", [[(3, 4)], [(3, 4), (4, 4)], [(3, 4), (4,)]])
def test_shapes_that_do_not_fit(op, shapes):
    with pytest.raises(ShapeError, match="two or more inputs"):
        op.output_shape(*shapes)
