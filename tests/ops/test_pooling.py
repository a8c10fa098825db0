import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import AveragePooling2D, Format, GlobalAveragePooling2D, MaxPooling2D, Target
from edgelearn.ops.tensor import RELU6

from .harness import SIZES, Workbench, close
from .integers import Drawn, exactly
from .plain import check_plain

BOTH = pytest.mark.parametrize("kind", [MaxPooling2D, AveragePooling2D])


@BOTH
@pytest.mark.parametrize("channels", SIZES)
def test_channels(bench, rng, kind, channels):
    check_plain(kind(3, 2, "same"), bench, rng, (5, 6, channels))


@BOTH
@pytest.mark.parametrize("width", SIZES)
def test_widths(bench, rng, kind, width):
    check_plain(kind(3, 2, ((1, 1), (1, 1))), bench, rng, (4, width, 3), n=3)


@BOTH
@pytest.mark.parametrize("height", SIZES)
def test_heights(bench, rng, kind, height):
    check_plain(kind((2, 3), (2, 1), "same"), bench, rng, (height, 4, 17))


@BOTH
def test_gaps_between_windows(bench, rng, kind):
    check_plain(kind(2, 3), bench, rng, (9, 10, 5))


def test_ties(bench, rng):
    check_plain(MaxPooling2D(3, 2, "same"), bench, rng, (11, 12, 20), whole=True)


def test_gradient_goes_to_the_first_maximum(bench):
    x = np.zeros((1, 2, 2, 1))
    tx, ty, tdx = bench.put(x), bench.empty((1, 1, 1, 1)), bench.empty(x.shape)
    op = MaxPooling2D()
    op.emit_forward(bench, [tx], ty)
    op.emit_backward(bench, [tx], ty, bench.put(np.ones((1, 1, 1, 1))), [Target(tdx)])
    bench.run()
    assert bench.get(tdx).ravel().tolist() == [1, 0, 0, 0]


def test_average_leaves_padding_out():
    y = AveragePooling2D(3, 1, "same").reference_forward([np.ones((1, 4, 4, 1))], {})
    assert (y == 1).all()


@pytest.mark.parametrize("channels", SIZES)
def test_global_average(bench, rng, channels):
    check_plain(GlobalAveragePooling2D(), bench, rng, (3, 5, channels), n=3)


@given(
    kind=st.sampled_from((MaxPooling2D, AveragePooling2D)),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(("same", "valid")),
    image=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    whole=st.booleans(),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_window(kernels, kind, size, strides, padding, image, whole):
    bench = Workbench(kernels.context, kernels)
    check_plain(kind(size, strides, padding), bench, np.random.default_rng(0), (*image, 3), whole=whole)


@given(
    size=st.integers(1, 5), stride=st.integers(1, 5), n=st.integers(1, 40), padding=st.sampled_from(("same", "valid"))
)
@settings(deadline=None, derandomize=True)
def test_output_size_is_keras(size, stride, n, padding):
    op = MaxPooling2D(size, stride, padding)
    if padding == "valid" and size > n:
        with pytest.raises(ShapeError):
            op.output_shape((n, n, 1))
    else:
        expected = -(-n // stride) if padding == "same" else (n - size) // stride + 1
        assert op.output_shape((n, n, 1)) == (expected, expected, 1)


@pytest.mark.parametrize("padding", [((2, 0), (0, 0)), ((0, 0), (0, 2))])
def test_windows_of_padding_alone(padding):
    with pytest.raises(ShapeError, match="padding"):
        MaxPooling2D(2, 1, padding).output_shape((4, 4, 1))


@pytest.mark.parametrize("pixel", [(0, 0), (1, 2), (2, 2)])
def test_max_keeps_a_nan(bench, pixel):
    x = np.arange(18.0).reshape(1, 3, 3, 2)
    x[(0, *pixel, 1)] = np.nan
    ty = bench.empty((1, 1, 1, 2))
    MaxPooling2D(3).emit_forward(bench, [bench.put(x)], ty)
    bench.run()
    assert np.array_equal(bench.get(ty).ravel(), [16.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("op", [MaxPooling2D(3, 2, "same"), MaxPooling2D(2), MaxPooling2D((2, 3), (1, 2))])
def test_max_of_integers(bench, rng, op, channels):
    """Selected as they are stored; the gradient is that of the floats that they stand for, masked by ReLU6."""
    x = Drawn(bench, rng, (2, 5, 7, channels), Format())
    y = op.reference_forward([x.q.astype(np.float64)], {})
    ty, tdx = bench.empty(y.shape, dtype="int8"), bench.empty(x.q.shape)
    op.emit_forward(bench, [x.ranged.tensor], ty)
    bench.run()
    exactly(bench.get(ty, int(x.zero)), y)

    dy = rng.standard_normal(y.shape)
    (dx,), _ = op.reference_backward([x.q.astype(np.float64)], {}, dy)
    op.emit_backward(bench, [x.ranged.tensor], ty, bench.put(dy), [Target(tdx, x.ranged, RELU6)])
    bench.run()
    close(bench.get(tdx), np.where((x.values > 0) & (x.values < 6), dx, 0))
