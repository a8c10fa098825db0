"""Ops without weights, forward and backward, against float64: a table of ops and shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    Add,
    AveragePooling2D,
    Concatenate,
    Flatten,
    Format,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    LocalResponseNormalization,
    MatMul,
    Max,
    MaxPooling2D,
    Mean,
    Pad,
    PadChannels,
    Reshape,
    Resize,
    Slice,
    SliceChannels,
    SpaceToDepth,
    Sum,
    Target,
    Traits,
    Transpose,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.resize import COORDINATES, INTERPOLATIONS, ROUNDINGS
from edgelearn.ops.tensor import RELU6

from .harness import SIZES, Workbench, close
from .integers import Drawn, exactly
from .plain import check_plain

AXES = (1, 2, 3, (1, 2), (1, 3), (2, -1), (1, 2, 3))
MIRRORED = ("edge", "reflect", "symmetric")
POOLS = (MaxPooling2D, AveragePooling2D)
CASES = [
    *((Pad(((1, 0), (2, 3), (5, 0)), value=v), (3, 4, c)) for v in (0, -1.5) for c in SIZES),
    *((Pad(((1, 2), (0, 1), (0, 16)), value=v), (3, 4, c)) for v in (0, -1.5) for c in SIZES),
    *((Pad(((2, 1), (0, 3), (0, 0)), mode), (3, 4, c)) for mode in MIRRORED for c in SIZES),
    *((Pad(((0, 1), (4, 15)), mode), (2, 17)) for mode in MIRRORED),
    *((Slice((1, -3, 0), (3, 2, -1)), (5, 4, c)) for c in SIZES),
    *((Slice((0, begin), (-1, size)), (3, 33))
      for begin, size in ((0, 16), (16, 16), (16, 17), (16, 8), (3, 30), (32, 1), (0, 20))),
    (Slice((0, -1, 0), (-1, -1, -1), (1, -1, 1)), (5, 6, 33)),
    (Slice((1, 4, 32), (2, 2, -1), (2, -3, -5)), (5, 6, 33)),
    (Slice((0, 1, 2), (-1, -1, -1), (3, 2, 4)), (5, 6, 33)),
    *((Transpose(axes), (4, 5, c)) for axes in ((2, 1, 3), (3, 2, 1), (2, 3, 1), (1, -1, 2)) for c in SIZES),
    (Transpose((1,)), (17,)), (Transpose((2, 1)), (33, 5)), (Transpose((1, 2, 4, 3)), (2, 3, 17, 2)),
    (Transpose((4, 3, 2, 1, 5)), (2, 3, 2, 3, 18)),
    *((Flatten(), (2, 3, c)) for c in SIZES), (Flatten(), (33,)),
    *((Reshape((3, c, 2)), (2, 3, c)) for c in SIZES), (Reshape((4, -1, 9)), (72,)),
    *((ZeroPadding2D(((0, 1), (2, 3))), (3, 4, c)) for c in SIZES),
    *((ZeroPadding2D((2, 1)), (2, width, 3)) for width in SIZES),
    *((SliceChannels(0, (c + 1) // 2), (3, 4, c)) for c in SIZES),
    *((SliceChannels(c // 2, (c + 1) // 2), (3, 4, c)) for c in SIZES),
    *((PadChannels(5, 17), (3, 4, c)) for c in SIZES), *((PadChannels(after=c), (c,)) for c in SIZES),
    *((SpaceToDepth(), (4, 6, c)) for c in SIZES), *((SpaceToDepth(size), (6, 9, 5)) for size in (1, 3)),
    *((Resize((7, 3), i), (4, 5, c)) for i in INTERPOLATIONS for c in SIZES),
    *((Resize(size, i, where), (4, 5, 3))
      for size in ((9, 3), (1, 17), (8, 2)) for i in INTERPOLATIONS for where in COORDINATES),
    *((Resize((6, 6), "nearest", "half_pixel", rounding), (4, 3, 17)) for rounding in ROUNDINGS),
    (Resize((6, 8), "bilinear", scale=(1.6, 1.7)), (4, 5, 3)),
    *((UpSampling2D((3, 2), i), (4, 5, 33)) for i in INTERPOLATIONS),
    *((AdaptiveAveragePooling2D(size), (4, 5, 33)) for size in ((2, 3), (4, 5), (7, 1))),
    *((Add(), (3, 5, c), (3, 5, c)) for c in SIZES), *((Add(), *[(33,)] * count) for count in (3, 5)),
    *((Add(), (1, 5, c), (3, 5, c), (3, 5, c)) for c in SIZES),
    (Add(), (7, 33, 3), (1, 33, 3)), (Add(), (7, 33, 3), (7, 1, 3)), (Add(), (7, 1, 17), (1, 33, 17)),
    (Add(), (1, 1, 3), (31, 1, 3), (31, 65, 3)),
    *((Concatenate(), (3, 2, c), (3, 2, 20), (3, 2, c)) for c in SIZES),
    *((Concatenate(), *((size,) for size in sizes))
      for sizes in ((16, 32), (1, 2, 3, 4), (15, 1, 16, 17), (5, 65, 63))),
    *((kind(axis), (5, 7, c)) for kind in (Mean, Sum, Max) for axis in AXES for c in (1, 15, 33)),
    *((kind(axis, keepdims=False), (5, 7, c)) for kind in (Mean, Sum, Max) for axis in AXES[:-1] for c in (1, 15, 33)),
    *((Mean(axis), shape) for axis in (1, 2) for size in SIZES for shape in ((size, 3, 17), (3, size, 17))),
    *((kind(axis), shape) for kind in (Mean, Sum, Max)
      for axis, shape in ((1, (33,)), (2, (5, 33)), (1, (5, 33)), ((2, 4), (2, 3, 4, 5)), (1, (1,)))),
    *((GlobalMaxPooling2D(), (5, 7, c)) for c in SIZES), *((GlobalAveragePooling2D(), (3, 5, c)) for c in SIZES),
    *((kind(3, 2, "same"), (5, 6, c)) for kind in POOLS for c in SIZES),
    *((kind(3, 2, ((1, 1), (1, 1))), (4, width, 3)) for kind in POOLS for width in SIZES),
    *((kind((2, 3), (2, 1), "same"), (height, 4, 17)) for kind in POOLS for height in SIZES),
    *((kind(2, 3), (9, 10, 5)) for kind in POOLS),
    *((LocalResponseNormalization(size, 0.3, 0.6, 1.5), (3, 4, c)) for size in (1, 4, 5, 40) for c in SIZES),
    (LocalResponseNormalization(alpha=0.5, average=True), (33,)),
    *((MatMul(), *shapes) for s in SIZES for shapes in (((5, 7), (7, s)), ((5, s), (s, 17)), ((s, 3), (3, 2)))),
    (MatMul(), (2, 9, 33), (2, 33, 18)), (MatMul(), (2, 3, 4, 5), (2, 3, 5, 6)),
]  # fmt: skip
TIES = [*((Max(axis), (4, 5, 33)) for axis in ((1, 2), 3, (1, 2, 3))), (MaxPooling2D(3, 2, "same"), (11, 12, 20))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_against_float64(bench, rng, case):
    op, *shapes = case
    check_plain(op, bench, rng, *shapes, n=3)


@pytest.mark.parametrize(("op", "shape"), TIES, ids=str)
def test_ties(bench, rng, op, shape):
    """Equal maxima of a reduction share the gradient; in a window the first has it."""
    check_plain(op, bench, rng, shape, whole=True)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        *((op, [(3, 5)]) for op in (
            Pad(((1, 1),)), Pad(((0, -1), (0, 0))), Pad(((3, 0), (0, 0)), "reflect"),
            Pad(((0, 4), (0, 0)), "symmetric"), Pad(((1, 1), (1, 1)), "wrap"),
        )),
        *((Slice(*arguments), [(2, 4)]) for arguments in (
            ((0,), (1,)), ((0, 4), (1, 1)), ((0, -5), (1, 1)), ((0, 2), (1, 3)), ((0, 0), (0, 1)),
            ((0, 0), (1, 1), (0, 1)), ((0, 0), (2, -1), (2, 1)), ((0, 1), (-1, 3), (1, -1)),
        )),
        *((Transpose(axes), [(3, 4, 5)])
          for axes in ((1, 2), (1, 2, 2), (0, 1, 2), (1, 2, 4), (-4, 2, 3), (1, 1, -1))),
        *((Reshape(target), [(3, 4)]) for target in ((), (5, -1), (-1, -1), (0, -1), (3, 5), (-2, 6))),
        (ZeroPadding2D(1), [(3,)]), (ZeroPadding2D(((0, -1), (0, 0))), [(3, 4, 5)]),
        *((op, [(4, 5, 5)])
          for op in (SliceChannels(-1, 2), SliceChannels(3, 3), SliceChannels(0, 0), PadChannels(-1, 3))),
        (SpaceToDepth(2), [(3, 4, 5)]), (SpaceToDepth(2), [(4,)]), (SpaceToDepth(0), [(4, 4, 4)]),
        *((op, [(4, 4, 1)]) for op in (
            Resize(3, "cubic"), Resize(3, coordinates="centre"), Resize(0), Resize(3, rounding="up"),
            Resize(3, scale=0.0), UpSampling2D(0), AdaptiveAveragePooling2D(0),
        )),
        (Resize(3), [(4, 1)]), (UpSampling2D(), [(4,)]),
        *((Add(), shapes) for shapes in ([(3, 5, 4), (2, 5, 4)], [(3, 5, 4), (3, 5, 2)], [(5, 4), (2, 4)])),
        *((op, shapes) for op in (Add(), Concatenate())
          for shapes in ([(3, 4)], [(3, 4), (4, 4)], [(3, 4), (3,)])),
        (Mean(0), [(3, 4, 5)]), (Mean(4), [(3, 4, 5)]), (Mean((1, 1)), [(3, 4)]), (Mean((1, 2), False), [(3, 4)]),
        (Mean(()), [(3, 4)]), (Max(-3), [(5, 6)]), (GlobalMaxPooling2D(), [(5, 6)]),
        *((MaxPooling2D(2, 1, padding), [(4, 4, 1)]) for padding in (((2, 0), (0, 0)), ((0, 0), (0, 2)))),
        *((MatMul(), shapes) for shapes in (
            ((3, 4), (3, 4)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((3, 4),)
        )),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit(op, shapes):
    with pytest.raises(ShapeError):
        op.output_shape(*shapes)


@pytest.mark.parametrize("arguments", [{"size": 0}, {"bias": 0.0}, {"alpha": -1.0}])
def test_bad_settings(arguments):
    with pytest.raises(ShapeError):
        LocalResponseNormalization(**arguments)


@pytest.mark.parametrize(
    ("op", "shape", "output"),
    [
        (Reshape((-1, 2)), (3, 4), (6, 2)),
        (ZeroPadding2D(2), (3, 4, 5), (7, 8, 5)),
        (ZeroPadding2D((1, 2)), (3, 4, 5), (5, 8, 5)),
        (ZeroPadding2D(((1, 2), (3, 4))), (3, 4, 5), (6, 11, 5)),
    ],
)
def test_output_shapes(op, shape, output):
    assert op.output_shape(shape) == output


def test_what_keeps_number_formats():
    assert Pad(((1, 1),)).selects and Pad(((1, 1),), "reflect").selects and not Pad(((1, 1),), value=0.5).selects
    assert Resize(3, "nearest").selects and UpSampling2D().selects and not Resize(3).selects


@pytest.mark.parametrize("op", [Transpose((3, 1, 2)), SpaceToDepth()], ids=str)
def test_inverse(bench, rng, op):
    x = np.float32(rng.standard_normal((2, 4, 6, 33)))
    y = op.reference_forward([x], {})
    tx, ty, tback = bench.put(x), bench.empty(y.shape), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_inverse(bench, ty, [], tback)
    bench.run()
    assert np.array_equal(bench.get(ty), y)
    assert np.array_equal(bench.get(tback), x)


@given(data=st.data())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_any_slice(kernels, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    begin = tuple(data.draw(st.integers(-n, n - 1)) for n in shape)
    strides = tuple(data.draw(st.sampled_from((-3, -2, -1, 1, 2, 3))) for _ in shape)
    op = Slice(begin, (-1,) * len(shape), strides)
    check_plain(op, Workbench(kernels.context, kernels), np.random.default_rng(0), shape)


@given(
    kind=st.sampled_from(POOLS),
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
def test_windows_are_those_of_keras(size, stride, n, padding):
    op = MaxPooling2D(size, stride, padding)
    if padding == "valid" and size > n:
        with pytest.raises(ShapeError):
            op.output_shape((n, n, 1))
    else:
        expected = -(-n // stride) if padding == "same" else (n - size) // stride + 1
        assert op.output_shape((n, n, 1)) == (expected, expected, 1)


def test_order_of_channels():
    x = np.arange(8).reshape(1, 2, 2, 2)  # tf.nn.space_to_depth gives the same
    assert SpaceToDepth().reference_forward([x], {}).ravel().tolist() == list(range(8))


ONE_ROW = {  # four pixels 0, 1, 2, 3 as eight, as three, and as two
    ("nearest", "half_pixel", "round_prefer_ceil"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 3], [1, 3]),  # tf.image.resize
    ("nearest", "half_pixel", "round_prefer_floor"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 3], [0, 2]),
    ("nearest", "asymmetric", "floor"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2], [0, 2]),  # torch
    ("nearest", "align_corners", "round_prefer_ceil"): ([0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 3], [0, 3]),
    ("bilinear", "half_pixel", "floor"): ([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3], [1 / 6, 1.5, 17 / 6], [0.5, 2.5]),
    ("bilinear", "asymmetric", "floor"): ([0, 0.5, 1, 1.5, 2, 2.5, 3, 3], [0, 4 / 3, 8 / 3], [0, 2]),
    ("bilinear", "align_corners", "floor"): (list(np.arange(8) * 3 / 7), [0, 1.5, 3], [0, 3]),
}


@pytest.mark.parametrize("convention", ONE_ROW, ids=" ".join)
def test_conventions_of_resizing(convention):
    x = np.arange(4.0).reshape(1, 1, 4, 1)
    for expected in ONE_ROW[convention]:
        y = Resize((1, len(expected)), *convention).reference_forward([x], {})
        assert y.ravel().tolist() == pytest.approx(expected)


def test_average_leaves_padding_out():
    assert (AveragePooling2D(3, 1, "same").reference_forward([np.ones((1, 4, 4, 1))], {}) == 1).all()


def test_windows_of_neighbours():
    """Those of tf.nn.local_response_normalization and, averaged, of ONNX."""
    x = np.arange(1.0, 6.0)[None]
    for size, sums in ((5, [14, 30, 55, 54, 50]), (3, [5, 14, 29, 50, 41]), (4, [14, 30, 54, 50, 41])):
        for average, count in ((False, 1), (True, size)):
            y = LocalResponseNormalization(size, 2.0, 1.0, average=average).reference_forward([x], {})
            assert np.allclose(y, x / (1 + 2 * np.array(sums) / count))


def output(bench, op, x, shape) -> np.ndarray:
    ty = bench.empty(shape)
    op.emit_forward(bench, [bench.put(x)], ty)
    bench.run()
    return bench.get(ty)


@pytest.mark.parametrize(("op", "shape"), [(GlobalMaxPooling2D(), (1, 2)), (MaxPooling2D(3), (1, 1, 1, 2))], ids=str)
@pytest.mark.parametrize("pixel", [(0, 0), (1, 2), (2, 2)])
def test_a_nan_stays(bench, op, shape, pixel):
    x = np.arange(18.0).reshape(1, 3, 3, 2)
    x[(0, *pixel, 1)] = np.nan
    assert np.array_equal(output(bench, op, x, shape).ravel(), [16.0, np.nan], equal_nan=True)


def test_long_sums_keep_their_digits(bench, rng):
    x = np.float32(rng.uniform(0, 1, (1, 700, 90, 3)))
    found = output(bench, Sum((1, 2, 3)), x, (1, 1, 1, 1))
    close(found, x.sum((1, 2, 3), np.float64, keepdims=True), 1e-6)


def test_gradient_goes_to_the_first_maximum(bench):
    x, op = np.zeros((1, 2, 2, 1)), MaxPooling2D()
    tx, ty, tdx = bench.put(x), bench.empty((1, 1, 1, 1)), bench.empty(x.shape)
    op.emit_forward(bench, [tx], ty)
    op.emit_backward(bench, [tx], ty, bench.put(np.ones((1, 1, 1, 1))), [Target(tdx)])
    bench.run()
    assert bench.get(tdx).ravel().tolist() == [1, 0, 0, 0]


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


def test_products_as_gpus_make_them(bench, rng):
    bench.traits = Traits(gpu=True, compute_units=1)
    check_plain(MatMul(), bench, rng, (2, 9, 33), (2, 33, 18))


def test_multiply_adds():
    assert MatMul().flops((2, 9, 33), (2, 33, 18)) == 2 * 2 * 9 * 33 * 18
