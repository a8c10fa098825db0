import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import Slice

from .harness import SIZES, Workbench
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
def test_rows_and_columns(bench, rng, channels):
    check_plain(Slice((1, -3, 0), (3, 2, -1)), bench, rng, (5, 4, channels))


@pytest.mark.parametrize(("begin", "size"), [(0, 16), (16, 16), (16, 17), (16, 8), (3, 30), (32, 1), (0, 20)])
def test_channels(bench, rng, begin, size):
    check_plain(Slice((0, begin), (-1, size)), bench, rng, (3, 33))


@pytest.mark.parametrize(
    ("begin", "size", "strides"),
    [
        ((0, -1, 0), (-1, -1, -1), (1, -1, 1)),
        ((1, 4, 32), (2, 2, -1), (2, -3, -5)),
        ((0, 1, 2), (-1, -1, -1), (3, 2, 4)),
    ],
)
def test_strides(bench, rng, begin, size, strides):
    check_plain(Slice(begin, size, strides), bench, rng, (5, 6, 33))


@given(data=st.data())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_any_range(kernels, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    begin = tuple(data.draw(st.integers(-n, n - 1)) for n in shape)
    strides = tuple(data.draw(st.sampled_from((-3, -2, -1, 1, 2, 3))) for _ in shape)
    check_plain(
        Slice(begin, (-1,) * len(shape), strides), Workbench(kernels.context, kernels), np.random.default_rng(0), shape
    )


@pytest.mark.parametrize(
    ("begin", "size", "strides"),
    [((0,), (1,), None), ((0, 4), (1, 1), None), ((0, -5), (1, 1), None), ((0, 2), (1, 3), None),
     ((0, 0), (0, 1), None), ((0, 0), (1, 1), (0, 1)), ((0, 0), (2, -1), (2, 1)), ((0, 1), (-1, 3), (1, -1))],
)  # fmt: skip
def test_ranges_that_there_are_not(begin, size, strides):
    with pytest.raises(ShapeError):
        Slice(begin, size, strides).output_shape((2, 4))
