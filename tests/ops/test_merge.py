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
def test_add_to_each_row(bench, rng, channels):
    check_plain(Add(), bench, rng, (1, 5, channels), (3, 5, channels), (3, 5, channels))


@pytest.mark.parametrize(
    "shapes",
    [
        [(7, 33, 3), (1, 33, 3)],
        [(7, 33, 3), (7, 1, 3)],
        [(7, 1, 17), (1, 33, 17)],
        [(1, 1, 3), (31, 1, 3), (31, 65, 3)],
    ],
)
def test_add_of_other_heights_and_widths(bench, rng, shapes):
    check_plain(Add(), bench, rng, *shapes, n=3)


@pytest.mark.parametrize("shapes", [[(3, 5, 4), (2, 5, 4)], [(3, 5, 4), (3, 5, 2)], [(5, 4), (2, 4)]])
def test_sizes_that_nothing_repeats_to(shapes):
    with pytest.raises(ShapeError, match="Add"):
        Add().output_shape(*shapes)


@pytest.mark.parametrize("channels", SIZES)
def test_concatenate(bench, rng, channels):
    check_plain(Concatenate(), bench, rng, (3, 2, channels), (3, 2, 20), (3, 2, channels))


@pytest.mark.parametrize("sizes", [(16, 32), (1, 2, 3, 4), (15, 1, 16, 17), (5, 65, 63)])
def test_concatenate_vectors(bench, rng, sizes):
    check_plain(Concatenate(), bench, rng, *[(size,) for size in sizes], n=3)


@pytest.mark.parametrize("op", [Add(), Concatenate()])
@pytest.mark.parametrize("shapes", [[(3, 4)], [(3, 4), (4, 4)], [(3, 4), (3,)]])
def test_shapes_that_do_not_fit(op, shapes):
    with pytest.raises(ShapeError, match=type(op).__name__):
        op.output_shape(*shapes)
