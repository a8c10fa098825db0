"""Convolutions and dense layers against float64: a table of ops and shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.ops import (
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv1D,
    DepthwiseConv2D,
    Traits,
    families,
)

from .harness import GPU, SIZES, in_turn
from .linear import check_geometry, check_linear, check_long_sums

ODD = ((0, 1), (0, 1))
CASES = [  # op, shape, images, channels of a block
    *((Conv2D(17, 3, padding="same"), (5, 7, c), 2, 16) for c in SIZES),
    *((Conv2D(f, 3, strides=2, padding="same"), (6, 9, 5), 2, 16) for f in SIZES),
    *((Conv2D(16, (2, 3), strides=(1, 2), padding="same"), (3, width, 4), 1, 16) for width in SIZES),
    *((Conv2D(18, 3, padding="same", groups=groups), (5, 6, 12), 2, 16) for groups in (2, 3, 6)),
    *((Conv2D(20, 3, strides=2, padding=ODD), (8, 10, c), 2, c) for c in (1, 3, 15)),
    *((Conv2D(f, (3, 2), padding="same", groups=groups), (4, 5, c), 2, 16)  # borders of groups between blocks
      for groups, c, f in ((2, 62, 66), (3, 3, 33), (4, 64, 4))),
    *((Conv2D(f, 3, 2, "same", groups=groups), (6, 9, c), 2, 16) for groups, c, f in ((2, 64, 96), (3, 48, 144))),
    (Conv2D(10, 3, (2, 1), ((1, 0), (2, 1)), (1, 2), 5), (7, 8, 15), 2, 16), (Conv2D(6, 1, groups=2), (1, 1, 4), 1, 16),
    *((Conv2D(17, 1), (4, 5, c), 2, 16) for c in SIZES), *((Conv2D(f, 1), (4, 5, 33), 2, 16) for f in SIZES),
    *((Conv2D(33, 1), (1, rows, 18), 1, 16) for rows in SIZES),
    *((Conv2D(20, 1), (1, rows, 12), 1, 16) for rows in (257, 1000)),  # split between work-items
    *((Conv2D(20, 1), (8, 10, c), 2, c) for c in (1, 3, 15)),
    *((Dense(10), (features,), 7, 16) for features in SIZES), *((Dense(units), (50,), 3, 16) for units in SIZES),
    *((Dense(5), (40,), n, 16) for n in SIZES),
    *((Dense(units), (3, 5, features), 2, 16) for features, units in ((1, 33), (16, 1), (31, 17))),
    (Dense(20), (40, 18), 1, 16),
    *((DepthwiseConv2D(3, padding="same"), (6, 9, c), 2, 16) for c in SIZES),
    *((DepthwiseConv2D(3, strides=2, padding="same"), (5, width, 17), 1, 16) for width in SIZES),
    *((DepthwiseConv2D(3, (2, 1), "same", depth_multiplier=multiplier), (6, 5, c), 2, 16)
      for c, multiplier in ((1, 17), (5, 3), (16, 2), (33, 2))),
    # On CPUs a work-item slides over a band of rows; the last band is shorter.
    *((DepthwiseConv2D(3, padding="same"), (height, 9, 3), 1, 16) for height in (1, 2, 14, 33)),
    (DepthwiseConv2D(3, strides=2, padding=ODD), (14, 14, 32), 2, 16),  # MobileNet's halving
    *((Conv2DTranspose(17, 3, 2, "same"), (5, 7, c), 2, 16) for c in SIZES),
    *((Conv2DTranspose(f, 3, 2, "same"), (5, 7, 5), 2, 16) for f in SIZES),
    *((op, (3, 4, 20), 1, 16) for op in (
        Conv2DTranspose(18, 2, 2), Conv2DTranspose(18, 1, 1),
        Conv2DTranspose(18, (2, 3), (3, 2), ((0, 1), (1, 1)), (1, 0)),
        Conv2DTranspose(18, 3, 1, "same", dilation_rate=(2, 1)), Conv2DTranspose(18, (1, 2), (3, 4)),
        Conv2DTranspose(18, 3, 2, "same", groups=2),
        Conv2DTranspose(40, (2, 3), (1, 2), ((0, 1), (1, 0)), (0, 1), (2, 1), groups=20),
    )),
    *((op, (19, 9), 3, 16) for op in (
        Conv1D(17, 3), Conv1D(17, 5, 2, "same"), Conv1D(18, 3, padding="causal", dilation_rate=4),
        Conv1D(6, 4, 3, (2, 1), groups=3), DepthwiseConv1D(3, padding="same"),
        DepthwiseConv1D(4, 2, "causal", 2, depth_multiplier=2), Conv1DTranspose(17, 3, 2, "same"),
        Conv1DTranspose(6, 4, 3, (1, 2), 1, groups=3),
    )),
    (Conv1D(7, 3, padding="same"), (12, 3), 2, 3),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "n", "block", "way"), in_turn(CASES), ids=str)
def test_against_float64(bench, rng, op, shape, n, block, way):
    check_linear(op, bench, rng, shape, n, block, way=way)


AS_GPUS_DO = [  # op, shape, images
    # More image rows than members of a work-group.
    *((op, (40, 5, 20), 3) for op in (Conv2D(33, 3, strides=2, padding="same"), DepthwiseConv2D(3, padding="same"))),
    # Some pixels meet few of the taps, or none; and an image may have fewer rows than strides.
    (Conv2D(18, (2, 3), (1, 2), ((3, 0), (1, 2)), dilation_rate=(2, 1)), (8, 13, 33), 2),
    (Conv2D(18, 1, 3), (8, 13, 33), 2), (Conv2D(18, 3, 3), (3, 7, 17), 1),
    (Conv2D(64, 3, padding="same", groups=2), (5, 6, 32), 2),
    *((op, (5, 6, 20), 2) for op in (
        Conv2DTranspose(33, 3, 2, "same"), Conv2DTranspose(35, 3, 2, groups=5), DepthwiseConv2D(3, depth_multiplier=2),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "n", "way"), in_turn(AS_GPUS_DO), ids=str)
def test_against_float64_as_gpus_do(bench, rng, op, shape, n, way):
    bench.traits = GPU
    check_linear(op, bench, rng, shape, n, way=way)


MANY_ROWS = [
    (DepthwiseConv2D(3, padding="same"), (40, 17, 20), 3),
    (DepthwiseConv2D((5, 3), padding="same", use_bias=False), (9, 16, 33), 5),
    (DepthwiseConv2D((2, 4), padding=((0, 3), (5, 0))), (3, 30, 16), 4),
    (DepthwiseConv2D(5, padding="same"), (9, 16, 20), 2),
    (DepthwiseConv2D(3, 2, "same"), (12, 15, 20), 3),
    (DepthwiseConv2D(3, 1, "same", (2, 1)), (12, 15, 20), 3),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "n", "way"), in_turn(MANY_ROWS), ids=str)
def test_depthwise_layers_that_keep_a_gpu_busy(bench, rng, monkeypatch, op, shape, n, way):
    monkeypatch.setattr(families, "FEW_ITEMS", 0)
    bench.traits = GPU
    check_linear(op, bench, rng, shape, n, way=way)


@pytest.mark.parametrize("kind", (Conv2D, DepthwiseConv2D, Conv2DTranspose))
@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_geometry(kernels, kind, data):
    shape = (data.draw(st.integers(1, 10)), data.draw(st.integers(1, 10)), data.draw(st.integers(1, 20)))
    filters = () if kind is DepthwiseConv2D else (data.draw(st.integers(1, 40)),)
    check_geometry(lambda **window: kind(*filters, **window, use_bias=False), kernels, shape, data)


def test_long_sums_keep_their_digits(bench, rng):
    check_long_sums(bench, rng, 2, 16)


def test_rows_in_chunks_that_fit_the_cache(bench, rng):
    """Weights that keep a device busy by themselves: rows go in chunks, each added to those before."""
    bench.traits = Traits(compute_units=1, vector_width=bench.traits.vector_width)
    check_linear(Conv2D(48, 1), bench, rng, (41, 39, 128), n=1)
    op, x, dy = Conv2D(48, 1), bench.empty((1, 41, 39, 128)), bench.empty((1, 41, 39, 48))
    op.emit_backward_weights(bench, x, dy, bench.empty((1, 128, 48)), None, add=False)
    assert [launch.kernel for launch in bench.launches] == ["pointwise_backward_weights"] * 2


def test_reference_knows_a_case_by_hand():
    x = np.arange(9.0).reshape(1, 3, 3, 1)
    kernel = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(2, 2, 1, 1)
    op = DepthwiseConv2D(2, use_bias=False)
    assert op.reference_forward([x], {"kernel": kernel})[0, :, :, 0].tolist() == [[27, 37], [57, 67]]
    (dx,), gradients = op.reference_backward([x], {"kernel": kernel}, np.ones((1, 2, 2, 1)))
    assert dx[0, :, :, 0].tolist() == [[1, 3, 2], [4, 10, 6], [3, 7, 4]]
    assert gradients["kernel"][:, :, 0, 0].tolist() == [[8, 12], [20, 24]]


@pytest.mark.parametrize("padding", ["same", "valid", ((1, 0), (1, 2))])
def test_transposed_is_the_gradient_of_a_convolution(rng, padding):
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
def test_transposed_sizes(kernel, strides, padding, more, size):
    """Outputs are those of keras.layers.Conv2DTranspose and, with numbers, torch.nn.ConvTranspose2d."""
    assert Conv2DTranspose(1, kernel, strides, padding, more).output_shape((5, 5, 1)) == (size, size, 1)
