import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import Conv2D, Conv2DTranspose

from .harness import SIZES
from .linear import check_geometry, check_linear


@pytest.mark.parametrize("channels", SIZES)
def test_channels_in(bench, rng, channels):
    check_linear(Conv2DTranspose(17, 3, 2, "same"), bench, rng, (5, 7, channels))


@pytest.mark.parametrize("filters", SIZES)
def test_channels_out(bench, rng, filters):
    check_linear(Conv2DTranspose(filters, 3, 2, "same"), bench, rng, (5, 7, 5))


@pytest.mark.parametrize(
    "op",
    [
        Conv2DTranspose(18, 2, 2),
        Conv2DTranspose(18, 1, 1),
        Conv2DTranspose(18, (2, 3), (3, 2), ((0, 1), (1, 1)), (1, 0)),
        Conv2DTranspose(18, 3, 1, "same", dilation_rate=(2, 1)),
        Conv2DTranspose(18, (1, 2), (3, 4)),
        Conv2DTranspose(18, 3, 2, "same", groups=2),
        Conv2DTranspose(40, (2, 3), (1, 2), ((0, 1), (1, 0)), (0, 1), (2, 1), groups=20),
    ],
)
def test_windows(bench, rng, op):
    check_linear(op, bench, rng, (3, 4, 20), n=1)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_geometry(kernels, data):
    shape = (data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20)))
    filters = data.draw(st.integers(1, 20))
    check_geometry(lambda **window: Conv2DTranspose(filters, **window, use_bias=False), kernels, shape, data)


@pytest.mark.parametrize("padding", ["same", "valid", ((1, 0), (1, 2))])
def test_it_is_the_gradient_of_a_convolution(rng, padding):
    """From images of its output's size, with the kernel transposed in each tap."""
    op = Conv2DTranspose(3, 4, 2, padding, dilation_rate=(1, 2), use_bias=False)
    x, kernel = rng.standard_normal((2, 5, 6, 4)), rng.standard_normal((4, 4, 4, 3))
    convolution = Conv2D(4, 4, 2, op.window(x.shape[1:]).padding, (1, 2), use_bias=False)
    like = rng.standard_normal((2, *op.output_shape(x.shape[1:])))
    (expected,), _ = convolution.reference_backward([like], {"kernel": kernel.swapaxes(2, 3)}, x)
    assert np.allclose(op.reference_forward([x], {"kernel": kernel}), expected)


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "more", "size"),
    [(3, 2, "same", None, 10), (3, 2, "valid", None, 11), (2, 3, "valid", None, 15), (4, 2, ((1, 1), (1, 1)), None, 10),
     (3, 2, ((1, 1), (1, 1)), 1, 10), (3, 2, "same", 1, 10), (3, 2, "same", 0, 9), (4, 2, "same", 1, 9)],
)  # fmt: skip
def test_sizes(kernel, strides, padding, more, size):
    """Those of keras.layers.Conv2DTranspose and, with numbers, torch.nn.ConvTranspose2d."""
    assert Conv2DTranspose(1, kernel, strides, padding, more).output_shape((5, 5, 1)) == (size, size, 1)


@pytest.mark.parametrize(
    "op",
    [Conv2DTranspose(0, 3), Conv2DTranspose(2, 3, groups=2), Conv2DTranspose(1, 3, 0),
     Conv2DTranspose(1, 3, 2, "valid", 2), Conv2DTranspose(1, 3, 2, "odd"),
     Conv2DTranspose(1, 3, 2, ((9, 9), (9, 9))), Conv2DTranspose(1, 4, 2, "same", 0),
     Conv2DTranspose(1, 2, 2, "valid", -1)],
)  # fmt: skip
def test_arguments_that_do_not_fit(op):
    with pytest.raises(ShapeError):
        op.output_shape((5, 5, 1))
