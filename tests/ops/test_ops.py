"""Ops other than convolutions, dense layers, activations and BatchNorm, against float64: a table of ops and shapes, and
the answers known by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn import ops
from edgelearn.errors import ShapeError
from edgelearn.ops import Max, MaxPooling2D, Mean, Resize, Sum, Target
from edgelearn.ops.resize import COORDINATES, INTERPOLATIONS, ROUNDINGS
from edgelearn.ops.tensor import RELU6

from .harness import GPU, SIZES, Workbench, check_op, close, in_turn
from .integers import Drawn, exactly

AXES = (1, 2, 3, (1, 2), (1, 3), (2, -1), (1, 2, 3))
MIRRORED = ("edge", "reflect", "symmetric")
POOLS = (MaxPooling2D, ops.AveragePooling2D)
OF_TWO = (ops.Divide(), ops.Greater(), ops.Less(), ops.Maximum(), ops.Minimum(), ops.Subtract())
WHOLE = {"whole": True, "low": -2}  # some of the numbers are 0


def repeated(c: int) -> dict[str, tuple]:
    """Two shapes, one of which is repeated to the other's."""
    return {
        "the same": ((3, 5, c), (3, 5, c)), "a gate": ((7, 6, c), (1, 1, c)), "another rank": ((7, 6, c), (c,)),
        "one channel": ((3, 5, c), (3, 5, 1)), "one number": ((1, 1, 1), (3, 5, c)),
        "rows and columns": ((1, 5, c), (3, 1, c)), "outer": ((4, 1, 1), (1, 3, c)), "rank 2": ((6, c), (1, c)),
        "rank 4": ((2, 3, 4, c), (1, 3, 4, c)),
    }  # fmt: skip


def numbers(low: int, high: int, *shape: int) -> dict:
    """Whole numbers as the last input."""
    return {"n": shape[0], "last": np.random.default_rng(0).integers(low, high, shape).astype(float)}


# Rows are an op, shapes of its inputs, and what `check_op` is told besides.
MOVING = [
    *((ops.Pad(((1, 0), (2, 3), (5, 0)), value=v), (3, 4, c)) for v in (0, -1.5) for c in SIZES),
    *((ops.Pad(((1, 2), (0, 1), (0, 16)), value=v), (3, 4, c)) for v in (0, -1.5) for c in SIZES),
    *((ops.Pad(((2, 1), (0, 3), (0, 0)), mode), (3, 4, c)) for mode in MIRRORED for c in SIZES),
    *((ops.Pad(((0, 1), (4, 15)), mode), (2, 17)) for mode in MIRRORED),
    *((ops.Slice((1, -3, 0), (3, 2, -1)), (5, 4, c)) for c in SIZES),
    *((ops.Slice((0, begin), (-1, size)), (3, 33))
      for begin, size in ((0, 16), (16, 16), (16, 17), (16, 8), (3, 30), (32, 1), (0, 20))),
    (ops.Slice((0, -1, 0), (-1, -1, -1), (1, -1, 1)), (5, 6, 33)),
    (ops.Slice((1, 4, 32), (2, 2, -1), (2, -3, -5)), (5, 6, 33)),
    (ops.Slice((0, 1, 2), (-1, -1, -1), (3, 2, 4)), (5, 6, 33)),
    *((ops.Transpose(axes), (4, 5, c)) for axes in ((2, 1, 3), (3, 2, 1), (2, 3, 1), (1, -1, 2)) for c in SIZES),
    (ops.Transpose((1,)), (17,)), (ops.Transpose((2, 1)), (33, 5)), (ops.Transpose((1, 2, 4, 3)), (2, 3, 17, 2)),
    (ops.Transpose((4, 3, 2, 1, 5)), (2, 3, 2, 3, 18)),
    *((ops.Flatten(), (2, 3, c)) for c in SIZES), (ops.Flatten(), (33,)),
    *((ops.Reshape((3, c, 2)), (2, 3, c)) for c in SIZES), (ops.Reshape((4, -1, 9)), (72,)),
    *((ops.ZeroPadding2D(((0, 1), (2, 3))), (3, 4, c)) for c in SIZES),
    *((ops.ZeroPadding2D((2, 1)), (2, width, 3)) for width in SIZES),
    *((ops.SliceChannels(0, (c + 1) // 2), (3, 4, c)) for c in SIZES),
    *((ops.SliceChannels(c // 2, (c + 1) // 2), (3, 4, c)) for c in SIZES),
    *((ops.PadChannels(5, 17), (3, 4, c)) for c in SIZES), *((ops.PadChannels(after=c), (c,)) for c in SIZES),
    *((ops.SpaceToDepth(), (4, 6, c)) for c in SIZES), *((ops.SpaceToDepth(size), (6, 9, 5)) for size in (1, 3)),
    *((Resize((7, 3), i), (4, 5, c)) for i in INTERPOLATIONS for c in SIZES),
    *((Resize(size, i, where), (4, 5, 3))
      for size in ((9, 3), (1, 17), (8, 2)) for i in INTERPOLATIONS for where in COORDINATES),
    *((Resize((6, 6), "nearest", "half_pixel", rounding), (4, 3, 17)) for rounding in ROUNDINGS),
    (Resize((6, 8), "bilinear", scale=(1.6, 1.7)), (4, 5, 3)),
    *((ops.UpSampling2D((3, 2), i), (4, 5, 33)) for i in INTERPOLATIONS),
    *((ops.Concatenate(), (3, 2, c), (3, 2, 20), (3, 2, c)) for c in SIZES),
    *((ops.Concatenate(), *((size,) for size in sizes))
      for sizes in ((16, 32), (1, 2, 3, 4), (15, 1, 16, 17), (5, 65, 63))),
    *((ops.BroadcastTo((3, 5, c)), shape)
      for c in (1, 17, 64) for shape in ((1, 1, c), (c,), (3, 1, 1), (1, 5, c), (1,), (3, 5, c))),
    *((ops.Take(), shape, numbers(-shape[0], shape[0], 3, 7)) for c in SIZES for shape in ((5, c), (4, 3, c))),
    *((ops.Embedding(9, c), numbers(-9, 11, 5, 40)) for c in SIZES), (ops.Embedding(3, 5), numbers(0, 3, 40, 50)),
]  # fmt: skip
REDUCING = [
    *((op, (11, c)) for c in (1, 17, 33) for op in (
        ops.MaxPooling1D(), ops.MaxPooling1D(3, 2, "same"), ops.AveragePooling1D(3, 1, (1, 2)),
        ops.GlobalAveragePooling1D(), ops.GlobalMaxPooling1D(), ops.UpSampling1D(3),
    )),
    *((ops.AdaptiveAveragePooling2D(size), (4, 5, 33)) for size in ((2, 3), (4, 5), (7, 1))),
    *((kind(axis), (5, 7, c)) for kind in (Mean, Sum, Max) for axis in AXES for c in (1, 33)),
    *((kind(axis, keepdims=False), (5, 7, 15)) for kind in (Mean, Sum, Max) for axis in AXES[:-1]),
    *((Mean(axis), shape) for axis in (1, 2) for size in SIZES for shape in ((size, 3, 17), (3, size, 17))),
    *((kind(axis), shape) for kind in (Mean, Sum, Max)
      for axis, shape in ((1, (33,)), (2, (5, 33)), (1, (5, 33)), ((2, 4), (2, 3, 4, 5)), (1, (1,)))),
    *((ops.GlobalMaxPooling2D(), (5, 7, c)) for c in SIZES),
    *((ops.GlobalAveragePooling2D(), (3, 5, c)) for c in SIZES),
    *((kind(3, 2, "same"), (5, 6, c)) for kind in POOLS for c in SIZES),
    *((kind(3, 2, ((1, 1), (1, 1))), (4, width, 3)) for kind in POOLS for width in SIZES),
    *((kind((2, 3), (2, 1), "same"), (height, 4, 17)) for kind in POOLS for height in SIZES),
    *((kind(2, 3), (9, 10, 5)) for kind in POOLS),
    # Equal maxima of a reduction share the gradient; in a window the first has it.
    *((Max(axis), (4, 5, 33), {"whole": True}) for axis in ((1, 2), 3, (1, 2, 3))),
    (MaxPooling2D(3, 2, "same"), (11, 12, 20), {"whole": True}),
]  # fmt: skip
ARITHMETIC = [
    *((ops.Add(), (3, 5, c), (3, 5, c)) for c in SIZES), *((ops.Add(), *[(33,)] * count) for count in (3, 5)),
    *((ops.Add(), (1, 5, c), (3, 5, c), (3, 5, c)) for c in SIZES),
    (ops.Add(), (7, 33, 3), (1, 33, 3)), (ops.Add(), (7, 33, 3), (7, 1, 3)), (ops.Add(), (7, 1, 17), (1, 33, 17)),
    (ops.Add(), (1, 1, 3), (31, 1, 3), (31, 65, 3)),
    *((ops.Add(), *repeated(c)[name]) for name in ("another rank", "one channel", "outer", "rank 2") for c in (17, 1)),
    *((ops.Multiply(), *shapes) for shapes in repeated(17).values()),
    *((ops.Multiply(), *repeated(c)[name]) for name in ("a gate", "outer") for c in (1, 64)),
    (ops.Multiply(), (112, 112, 3), (1, 1, 3), {"n": 1}),  # a gate's gradient is a sum over an image
    *((op, *repeated(17)["one channel"], {"low": 1} if op == ops.Divide() else {}) for op in OF_TWO),
    *((ops.Subtract(), *shapes) for shapes in (repeated(17)["the same"], repeated(17)["a gate"][::-1])),
    *((ops.Where(), *shapes, WHOLE) for shapes in (
        ((3, 5, 17),) * 3, ((3, 5, 1), (3, 5, 17), (3, 5, 17)), ((1, 1, 17), (3, 5, 17), (3, 5, 1)),
        ((17,), (3, 5, 1), (1, 1, 17)), ((3, 5, 17), (1,), (1,)), ((3, 5, 1),) * 3,
    )),
    *((ops.Constant(shape), (4, 2)) for shape in ((1,), (17,), (5, 3), (3, 5, 33))),
    *((ops.Scale(shape), (5, 6, c)) for c in (1, 17)
      for shape in (None, (1,), (1, 1, 1), (5, 6, 1), (5, 1, c), (5, 6, c))),
    *((ops.Bias(shape), (5, 6, 17)) for shape in (None, (5, 6, 1))),
    *((ops.PReLU(axes), (5, 6, 17)) for axes in ((), (1,), (1, 2), (1, 2, 3), (3,))),
    *((op, (33,), {"n": 70}) for op in (ops.Scale(), ops.Bias(), ops.PReLU())), (ops.Scale(), (50, 60, 3)),
    *((ops.MatMul(), *shapes) for s in SIZES for shapes in (((5, 7), (7, s)), ((5, s), (s, 17)), ((s, 3), (3, 2)))),
    (ops.MatMul(), (2, 9, 33), (2, 33, 18)), (ops.MatMul(), (2, 3, 4, 5), (2, 3, 5, 6)),
]  # fmt: skip
NORMALIZING = [
    *((ops.LocalResponseNormalization(size, 0.3, 0.6, 1.5), (3, 4, c)) for size in (1, 4, 5, 40) for c in SIZES),
    (ops.LocalResponseNormalization(alpha=0.5, average=True), (33,)),
    *((ops.RMSNormalization(0.5, axis=axis), (3, 4, c)) for axis in (-1, (2, 3)) for c in SIZES),
    (ops.RMSNormalization(1e-3, True, False), (5, 17)),
    *((ops.LayerNormalization(axis=axis), (3, 4, c)) for axis in (-1, (2, 3), (-3, -2, -1)) for c in SIZES),
    *((op, shape) for op in (ops.LayerNormalization(), ops.GroupNormalization(groups=1))
      for shape in ((33,), (5, 17), (2, 3, 2, 18))),
    *((ops.GroupNormalization(groups=groups), (5, 7, c))
      for groups, c in ((1, 33), (3, 33), (-1, 33), (2, 62), (5, 5), (4, 64), (32, 64))),
    *((ops.LayerNormalization(1e-5, *parts), shape) for shape in ((3, 17), (75, 32)) for parts in np.ndindex(2, 2)),
    *((ops.GroupNormalization(1e-5, *parts, 3), (2, 3, 18)) for parts in np.ndindex(2, 2)),
    *((op, shape) for op in (ops.Softmax(), ops.LogSoftmax()) for c in SIZES for shape in ((c,), (3, 4, c))),
]  # fmt: skip
RECURRENT = [
    *((kind(u, *returns), (steps, c))
      for kind in (ops.LSTM, ops.GRU) for u, c, steps, *several in (
          (17, 3, 5, (True,), (False, True)), (5, 33, 1, (True, True)),
          (32, 17, 35, (False, True)),
      ) for returns in several),
    *((kind(6, True, True, use_bias=False, truncate=2), (7, 4), (kind.sets, 6)) for kind in (ops.LSTM, ops.GRU)),
    *((kind(18, sequences, go_backwards=True), (19, 4), (kind.sets, 18), numbers(0, 2, 5, 19))
      for kind in (ops.LSTM, ops.GRU) for sequences in (True, False)),
]  # fmt: skip
ATTENDING = [
    *((ops.ReverseEmbedding(rows), (7, c)) for rows, c in ((1, 5), (65, 33), (17, 64))),
    *((ops.Attention(scale=0.01, causal=causal), (t, c), (s, c), (s, c)) for causal, t, s, c in (
        (False, 1, 1, 1), (True, 5, 3, 33), (True, 35, 33, 16), (False, 35, 33, 16), (True, 70, 70, 33),
    )),
    *((ops.Attention(heads, key_heads, True, 0.02), (37, c), *[(37, c // heads * key_heads)] * 2)
      for heads, key_heads, c in ((3, 3, 15), (2, 1, 64), (4, 2, 128), (6, 3, 30))),
    *((ops.Attention(2, scale=0.02, causal=causal), (9, 32), (19, 32), (19, 32), numbers(0, 2, 5, 19))
      for causal in (False, True)),
    # Several chunks of keys, for gradients in one launch (two images) and in launches of their own
    *((ops.Attention(2, 1, causal, 0.02), (150, 64), (130, 32), (130, 32), {"n": n})
      for causal in (False, True) for n in (1, 2)),
    (ops.Attention(1, scale=0.02, causal=True), (37, 48), (37, 48), (37, 48), {"n": 4}),
    *((ops.RotaryEmbedding(heads, interleaved=pairs, begin=3), (7, c))
      for pairs in (False, True) for heads, c in ((1, 2), (3, 18), (2, 64))),
]  # fmt: skip
AS_GPUS_DO = [
    *[case for case in ATTENDING if isinstance(case[0], ops.Attention)][::3],
    (ops.Attention(2, 1, True, 0.02), (137, 66), (137, 33), (137, 33)), (ops.RotaryEmbedding(3), (7, 18)),
    (ops.RotaryEmbedding(3, begin=2), (7, 18), numbers(0, 50, 5, 7)),
    *((kind(17, True), (9, 5)) for kind in (ops.LSTM, ops.GRU)),
    (MaxPooling2D(3, 2, "same"), (6, 11, 33)), (ops.AveragePooling2D(3, 2, "same"), (6, 11, 33)),
    (ops.GlobalAveragePooling2D(), (5, 7, 33)), (ops.GlobalAveragePooling2D(), (1, 2, 3)),
    (ops.ZeroPadding2D(((0, 1), (2, 0))), (5, 6, 33)), (ops.Flatten(), (3, 5, 33)), (Mean(), (5, 6, 33)),
    (ops.Add(), (5, 6, 33), (5, 6, 33), (5, 6, 33)), (ops.Add(), (1, 6, 33), (5, 6, 33)),
    (ops.Concatenate(), (4, 5, 15), (4, 5, 33)), (ops.Transpose((2, 1, 3)), (4, 5, 33)),
    (ops.Transpose((3, 2, 1)), (4, 5, 33)), (ops.Slice((1, -1, 17), (2, -1, -1), (2, -1, 1)), (4, 5, 33)),
    (ops.Pad(((1, 0), (0, 2), (1, 17)), value=2.5), (4, 5, 33)),
    (ops.Pad(((1, 0), (0, 2), (0, 0)), "reflect"), (4, 5, 33)), (Mean((1, 2, 3)), (9, 7, 33)),
    (Sum(3, keepdims=False), (9, 7, 33)), (Max((1, 2)), (9, 7, 33)), (Max((2, 3), keepdims=False), (9, 7, 33)),
    (ops.Softmax(), (5, 333)), (Resize((7, 9)), (5, 6, 33)),
    (ops.LocalResponseNormalization(alpha=0.5), (5, 6, 33)), (ops.MatMul(), (2, 9, 33), (2, 33, 18)),
    *((ops.Multiply(), *repeated(17)[name]) for name in ("one channel", "outer", "rank 4")),
    *((ops.Bias(shape), (5, 6, 17)) for shape in (None, (1,))),
    *((op, (7, 9, 33)) for op in (
        ops.LayerNormalization(), ops.LayerNormalization(axis=(1, 2, 3)), ops.GroupNormalization(groups=11),
    )),
]  # fmt: skip


def name(case: tuple) -> str:
    return " ".join(str(part) for part in case[:-1] if not isinstance(part, dict))


def check(bench, rng, case: tuple) -> None:
    op, *shapes, way = case
    options = shapes.pop() if isinstance(shapes[-1], dict) else {}
    check_op(op, bench, rng, *shapes, **{"n": 3, "way": way} | options)


CASES = in_turn([*MOVING, *REDUCING, *ARITHMETIC, *NORMALIZING, *RECURRENT, *ATTENDING])


@pytest.mark.parametrize("case", CASES, ids=name)
def test_against_float64(bench, rng, case):
    check(bench, rng, case)


@pytest.mark.parametrize("case", in_turn(AS_GPUS_DO), ids=name)
def test_against_float64_as_gpus_do(bench, rng, case):
    bench.traits = GPU
    check(bench, rng, case)


@given(data=st.data())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_any_slice(kernels, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    begin = tuple(data.draw(st.integers(-n, n - 1)) for n in shape)
    strides = tuple(data.draw(st.sampled_from((-3, -2, -1, 1, 2, 3))) for _ in shape)
    op = ops.Slice(begin, (-1,) * len(shape), strides)
    check_op(op, Workbench(kernels.context, kernels), np.random.default_rng(0), shape)


@given(
    kind=st.sampled_from(POOLS),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(("same", "valid")),
    image=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    whole=st.booleans(),
)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_any_window(kernels, kind, size, strides, padding, image, whole):
    bench = Workbench(kernels.context, kernels)
    check_op(kind(size, strides, padding), bench, np.random.default_rng(0), (*image, 3), whole=whole)


# -- shapes ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("op", "shape", "output"),
    [
        (ops.Reshape((-1, 2)), (3, 4), (6, 2)),
        (ops.ZeroPadding2D(2), (3, 4, 5), (7, 8, 5)),
        (ops.ZeroPadding2D((1, 2)), (3, 4, 5), (5, 8, 5)),
        (ops.ZeroPadding2D(((1, 2), (3, 4))), (3, 4, 5), (6, 11, 5)),
    ],
)
def test_output_shapes(op, shape, output):
    assert op.output_shape(shape) == output


def test_what_keeps_number_formats():
    pads = [ops.Pad(((1, 1),)), ops.Pad(((1, 1),), "reflect"), ops.Pad(((1, 1),), value=0.5)]
    assert [op.selects for op in pads] == [True, True, False]
    assert [op.selects for op in (Resize(3, "nearest"), ops.UpSampling2D(), Resize(3))] == [True, True, False]


def test_multiply_adds():
    assert ops.MatMul().flops((2, 9, 33), (2, 33, 18)) == 2 * 2 * 9 * 33 * 18


# -- answers known by hand ---------------------------------------------------------------------------------------------


def test_order_of_channels():
    x = np.arange(8).reshape(1, 2, 2, 2)  # tf.nn.space_to_depth gives the same
    assert ops.SpaceToDepth().reference_forward([x], {}).ravel().tolist() == list(range(8))


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
    assert (ops.AveragePooling2D(3, 1, "same").reference_forward([np.ones((1, 4, 4, 1))], {}) == 1).all()


@pytest.mark.parametrize(
    ("size", "means"), [(2, [1, 3]), (3, [0.5, 2, 3.5]), (5, [0, 1, 2, 3, 4]), (7, [0, 0.5, 1.5, 2, 2.5, 3.5, 4])]
)
def test_parts_of_adaptive_pooling(size, means):
    """Means of five pixels 0 to 4 are those of torch.nn.AdaptiveAvgPool2d."""
    x = np.arange(5.0).reshape(1, 1, 5, 1)
    y = ops.AdaptiveAveragePooling2D((1, size)).reference_forward([x], {})
    assert y.ravel().tolist() == pytest.approx(means)


def test_windows_of_neighbours():
    """Outputs are those of tf.nn.local_response_normalization and, averaged, of ONNX."""
    x = np.arange(1.0, 6.0)[None]
    for size, sums in ((5, [14, 30, 55, 54, 50]), (3, [5, 14, 29, 50, 41]), (4, [14, 30, 54, 50, 41])):
        for average, count in ((False, 1), (True, size)):
            y = ops.LocalResponseNormalization(size, 2.0, 1.0, average=average).reference_forward([x], {})
            assert np.allclose(y, x / (1 + 2 * np.array(sums) / count))


def run(bench, op, *xs: np.ndarray, dy: np.ndarray | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The output on the device, and the gradients of the inputs for the output's gradient `dy` (default: ones)."""
    shape = (len(xs[0]), *op.output_shape(*(x.shape[1:] for x in xs)))
    inputs, ty, found = [bench.put(x) for x in xs], bench.empty(shape), [bench.empty(x.shape) for x in xs]
    op.emit_forward(bench, inputs, ty)
    op.emit_backward(bench, inputs, ty, bench.put(np.ones(shape) if dy is None else dy), [Target(t) for t in found])
    bench.run()
    return bench.get(ty), [bench.get(t) for t in found]


@pytest.mark.parametrize("op", [ops.Transpose((3, 1, 2)), ops.SpaceToDepth()], ids=str)
def test_inverse(bench, rng, op):
    x = np.float32(rng.standard_normal((2, 4, 6, 33)))
    y = op.reference_forward([x], {})
    ty, tback = bench.put(y), bench.empty(x.shape)
    op.emit_inverse(bench, ty, [], tback)
    bench.run()
    assert np.array_equal(bench.get(tback), x)


@pytest.mark.parametrize("op", [ops.GlobalMaxPooling2D(), MaxPooling2D(3)], ids=str)
@pytest.mark.parametrize("pixel", [(0, 0), (1, 2), (2, 2)])
def test_a_maximum_that_is_nan_stays(bench, op, pixel):
    x = np.arange(18.0).reshape(1, 3, 3, 2)
    x[(0, *pixel, 1)] = np.nan
    assert np.array_equal(run(bench, op, x)[0].ravel(), [16.0, np.nan], equal_nan=True)


def test_the_first_maximum_has_the_gradient(bench):
    _, (dx,) = run(bench, MaxPooling2D(), np.zeros((1, 2, 2, 1)))
    assert dx.ravel().tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("op", "expected", "first"), [(ops.Maximum(), [1, 3], [1, 0]), (ops.Minimum(), [1, 2], [1, 1])], ids=str
)
def test_ties_and_nans_of_two(bench, op, expected, first):
    a, b = np.array([[1.0, 2, np.nan, 1, np.nan]]), np.array([[1.0, 3, 1, np.nan, np.nan]])
    y, (da, db) = run(bench, op, a, b)
    assert y[0, :2].tolist() == expected and np.isnan(y[0, 2:]).all()
    assert da[0, :2].tolist() == first and (da + db)[0, :2].tolist() == [1, 1]


def test_what_is_not_chosen_has_no_part(bench):
    condition, a, b = np.array([[1.0, 0, np.nan]]), np.array([[2.0, np.nan, 3]]), np.array([[np.inf, 5, np.nan]])
    y, gradients = run(bench, ops.Where(), condition, a, b)
    assert y.tolist() == [[2, 5, 3]]
    assert [g.tolist() for g in gradients] == [[[0, 0, 0]], [[1, 0, 1]], [[0, 1, 0]]]


def test_numbers_are_rounded_and_rows_that_are_not_there_are_nan(bench, rng):
    numbers = np.array([[0.4, -0.6, 1.6, 3, -4, np.nan, np.inf, -2.6, 2.4, 2.6]])
    check_op(ops.Take(), bench, rng, (3, 2), n=1, last=numbers)
    missing = np.isnan(ops.Take().reference_forward([np.ones((1, 3, 2)), numbers], {})[0, :, 0])
    assert np.flatnonzero(missing).tolist() == [3, 4, 5, 6, 9]


@pytest.mark.parametrize("size", (16, 17))
def test_attention_to_kept_steps(bench, rng, size):
    """Step by step; what is kept of later steps has no part."""
    op, kept = ops.CachedAttention(2, 1, 5), {name: rng.standard_normal((5, size)) for name in ("keys", "values")}
    tensors = [bench.put(rows) for rows in kept.values()]
    for place in range(3):
        xs = [*(rng.standard_normal((1, 1, count * size)) for count in (2, 1, 1)), np.full((1, 1), float(place))]
        y = op.reference_forward(xs, kept)
        ty = bench.empty(y.shape)
        op.emit_forward(bench, [*map(bench.put, xs), *tensors], ty)
        bench.run()
        close(bench.get(ty), y)
        for rows, x, tensor in zip(kept.values(), xs[1:3], tensors, strict=True):
            rows[place] = x[0, 0]
            close(bench.get(tensor), rows)


# -- digits ------------------------------------------------------------------------------------------------------------


def test_long_sums_keep_their_digits(bench, rng):
    x = np.float32(rng.uniform(0, 1, (1, 700, 90, 3)))
    close(run(bench, Sum((1, 2, 3)), x)[0], x.sum((1, 2, 3), np.float64, keepdims=True), 1e-6)


def test_normalized_values_far_from_zero_keep_their_digits(bench, rng):
    x = np.float64(np.float32(1000 + rng.standard_normal((2, 40, 41, 20))))
    op = ops.GroupNormalization(1e-5, False, False, 1)
    assert np.abs(run(bench, op, x)[0] - op.reference_forward([x], {})).max() < 1e-3


@pytest.mark.parametrize("classes", (2, 10, 33))
def test_the_logarithm_of_tiny_probabilities_is_finite(bench, rng, classes):
    """exp(-2000) is 0: Softmax, then Log gives -infinity and gradients that are NaN."""
    op, x = ops.LogSoftmax(), rng.uniform(-1000, 1000, (4, classes))
    x[0, :2] = -1000, 1000
    dy = rng.standard_normal(x.shape)
    y, (dx,) = run(bench, op, x, dy=dy)
    close(y, op.reference_forward([x], {}), 1e-6)
    close(dx, op.reference_backward([x], {}, dy)[0][0], 2e-4)  # exp of a float near 2000


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("op", [MaxPooling2D(3, 2, "same"), MaxPooling2D(2), MaxPooling2D((2, 3), (1, 2))])
def test_maxima_of_integers(bench, rng, op, channels):
    """Selected as they are stored; the gradient is that of the floats that they stand for, masked by ReLU6."""
    x = Drawn(bench, rng, (2, 5, 7, channels), ops.Format())
    y = op.reference_forward([x.q.astype(np.float64)], {})
    ty, tdx = bench.empty(y.shape, dtype="int8"), bench.empty(x.q.shape)
    dy = rng.standard_normal(y.shape)
    (dx,), _ = op.reference_backward([x.q.astype(np.float64)], {}, dy)
    op.emit_forward(bench, [x.ranged.tensor], ty)
    op.emit_backward(bench, [x.ranged.tensor], ty, bench.put(dy), [Target(tdx, x.ranged, RELU6)])
    bench.run()
    exactly(bench.get(ty, int(x.zero)), y)
    close(bench.get(tdx), np.where((x.values > 0) & (x.values < 6), dx, 0))


# -- streams of reversible networks ------------------------------------------------------------------------------------

STEP = 2.0**-10


def check_stream(bench, v: np.ndarray, f: np.ndarray) -> None:
    """A stream begins with v, f is added, and what comes back has its bits."""
    op, begin = ops.Coupling(STEP), ops.Stream(STEP)
    tf, tx, ty, tback = bench.put(f), *(bench.empty(v.shape) for _ in range(3))
    begin.emit_forward(bench, [bench.put(v)], tx)
    op.emit_forward(bench, [tx, tf], ty)
    op.emit_inverse(bench, ty, [tf], tback)
    bench.run()
    x = begin.reference_forward([np.float32(v).astype(np.float64)], {})
    assert np.array_equal(bench.get(tx), x) and np.array_equal(bench.get(tback), x)
    assert np.array_equal(bench.get(ty), op.reference_forward([x, f], {}))


@pytest.mark.parametrize("channels", SIZES)
def test_streams_come_back_to_the_bit(bench, rng, channels):
    """Halves between two steps among them."""
    v = rng.uniform(-40, 40, (2, 2, 3, 5, channels))
    v.flat[::3] = np.round(v.flat[::3] / STEP) * STEP
    v.flat[::7] = (np.round(v.flat[::7] / STEP) + 0.5) * STEP
    v = np.float32(v).astype(np.float64)
    check_stream(bench, *v)
    dy = rng.standard_normal(v[0].shape)
    for op, xs in ((ops.Coupling(STEP), v), (ops.Stream(STEP), v[:1])):
        for dx in run(bench, op, *xs, dy=dy)[1]:
            close(dx, dy)


def test_streams_are_exact_up_to_two_to_the_24_steps(bench):
    """Steps from 2^22 on leave sums of floats no room for a fraction, then for odd numbers."""
    steps = np.float64([2**22, 2**22 + 1, 2**23 - 1, 2**23 + 1, 2**24 - 3, 2**22 + 0.5, 2**22 + 1.5, 2**21 + 0.25, 0.5])
    x = np.concatenate([steps, -steps]) * STEP
    check_stream(bench, x, np.float64([1, 0.5, 1, 2, 1, 3, 2.5, -1.5, 1.5] * 2) * STEP)


def test_streams_without_a_step_come_back_nearly(bench, rng):
    x, f = rng.standard_normal((2, 2, 5, 33))
    op, tf, ty, tback = ops.Coupling(0), bench.put(f), bench.empty(x.shape), bench.empty(x.shape)
    op.emit_forward(bench, [bench.put(x), tf], ty)
    op.emit_inverse(bench, ty, [tf], tback)
    bench.run()
    close(bench.get(ty), x + f)
    assert 0 < np.abs(bench.get(tback) - np.float32(x)).max() < 1e-6
