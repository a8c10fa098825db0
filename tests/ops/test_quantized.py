"""Linear ops on integers, bit for bit: convolutions, dense layers, depthwise ones; bounds and sums that they apply."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.errors import PlanError
from edgelearn.launch import Role
from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D, Epilogue, Target, Traits, finish, quantized
from edgelearn.ops import quantize as copy
from edgelearn.ops.formats import QuantizedTensor, RangeStatistics
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import Quantizer, Residual
from edgelearn.ops.quantized import adds_residuals
from edgelearn.ops.tensor import LINEAR, RELU, RELU6, Function

from .harness import every_choice, in_turn
from .integers import (
    CLIPPED,
    FORMATS,
    PLAIN,
    WEIGHTS,
    Drawn,
    F,
    check_geometry,
    check_integers,
    check_stochastic,
    exactly,
    record_of,
)

FEW = (1, 3, 32, 65)
CASES = [  # op, shape, and what `check_integers` is told besides
    *((Conv2D(17, 3, padding="same"), (5, 7, c), {}) for c in FEW),
    *((Conv2D(filters, 3, strides=2, padding="same"), (6, 9, 5), {}) for filters in FEW),
    *((Conv2D(33, 1), (1, rows, 18), {"n": 1}) for rows in (1, 2, 33, 64, 1000)),
    *((Dense(10), (65,), {"n": n}) for n in (1, 7, 33)),
    *((Conv2D(20, (3, 5), strides=3 - dilation, padding=((0, 1), (3, 1)), dilation_rate=dilation), (8, 11, c),
       {"block": c}) for c in (1, 3) for dilation in (1, 2)),  # unpadded inputs
    *((Conv2D(18, (1, 3), padding="same"), (3, 9, 20), {"formats": formats}) for formats in FORMATS.values()),
    *((DepthwiseConv2D(3, padding="same"), (6, 9, c), {}) for c in (1, 17, 65)),
    *((DepthwiseConv2D(3, strides=2, padding="same"), (5, width, 17), {"n": 1}) for width in (1, 17, 65)),
    *((DepthwiseConv2D((2, 3), padding="same"), (3, 9, 20), {"formats": formats}) for formats in FORMATS.values()),
    # Taps that reach over several quads.
    (DepthwiseConv2D((2, 5), dilation_rate=2, padding=((1, 0), (3, 2))), (4, 8, 18), {}),
]  # fmt: skip
AS_GPUS_DO = [  # members of a work-group put together what they find
    *((Conv2D(33, size, padding="same"), (9, 10, 20)) for size in (1, 3)),
    (DepthwiseConv2D(3, strides=2, padding="same"), (9, 10, 20)),
]


@pytest.mark.parametrize(("op", "shape", "options", "way"), in_turn(CASES))
def test_integers_are_those_of_numpy(bench, rng, op, shape, options, way):
    check_integers(op, bench, rng, shape, **options, way=way)


@pytest.mark.parametrize(("op", "shape"), AS_GPUS_DO, ids=str)
def test_integers_as_gpus_make_them(bench, rng, op, shape):
    bench.traits = Traits(gpu=True, compute_units=1)
    check_integers(op, bench, rng, shape)


@pytest.mark.parametrize("kind", (Conv2D, DepthwiseConv2D))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_geometry(kernels, kind, data):
    shape = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20)))
    filters = () if kind is DepthwiseConv2D else (data.draw(st.integers(1, 40)),)
    check_geometry(lambda **window: kind(*filters, **window), kernels, shape, data)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Conv2D(20, 3, strides=2, padding="same", use_bias=False), (5, 6, 17)),
        (Conv2D(20, 1, use_bias=False), (3, 5, 17)),  # rows that are no images
        (DepthwiseConv2D(3, strides=2, padding="same", use_bias=False), (5, 6, 17)),
    ],
)
def test_stochastic_rounding(bench, rng, op, shape):
    check_stochastic(op, bench, rng, shape)


@pytest.mark.parametrize(
    ("op", "shape", "kernel", "least"),
    [
        (Conv2D(32, (1, 3), padding="same"), (2, 4, 4), "quantized_convolution_forward", 5),
        (DepthwiseConv2D(3, padding="same"), (3, 7, 16), "quantized_depthwise_forward", 3),
    ],
)
def test_every_choice(bench, rng, request, op, shape, kernel, least):
    """Each value of each size; all their pairs with `--all-candidates`."""
    bench.traits = replace(bench.traits, find_units=lambda: tuple(u for u in bench.context.device.units if u != "MMA"))
    pairs = request.config.getoption("--all-candidates")
    every_choice(bench, lambda: check_integers(op, bench, rng, shape, way=0), pairs)
    assert max(len(candidates) for (name, *_), candidates in bench.candidates.items() if name == kernel) > least


def test_long_sums_of_the_largest_products(bench):
    """Each partial sum of a gradient is nearly as large as an accumulator holds."""
    op = Conv2D(1, 1, use_bias=False)
    fields = np.float32([[1, 1, -128, *[0] * 13]])
    x = QuantizedTensor(bench.put(np.full((3, 128, 128, 1), 127), 16, "int8", -128), bench.put(fields), PLAIN)
    gradient = bench.empty((1, 1, 1, 1))
    found, _ = op.emit_backward_weights(bench, x, x, gradient, None, add=False)
    assert found.groups > 1
    finish.emit_sum(bench, found)
    bench.run()
    assert bench.get(gradient).item() == pytest.approx(3 * 128 * 128 * 255**2, rel=1e-6)


def test_sums_too_long_for_an_accumulator(bench):
    x = QuantizedTensor(bench.empty((1, 70_000), dtype="int8"), bench.empty((1, 16)), PLAIN)
    kernel = QuantizedTensor(bench.empty((70_000, 2), dtype="int8"), bench.empty((1, 16)), WEIGHTS)
    with pytest.raises(PlanError, match=r"70,000 .*8 x 8 .*2,266,950,000"):
        Dense(2).emit_linear(bench, x, kernel, Target(bench.empty((1, 2))), Epilogue())


def test_shares_of_a_gradient_are_floats(bench):
    x = QuantizedTensor(bench.empty((1, 4, 4, 6), dtype="int8"), bench.empty((1, 16)), PLAIN)
    with pytest.raises(PlanError):
        Conv2D(6, 1).emit_backward_data(bench, x.tensor, x, x, Target(x, accumulate=True))


@pytest.mark.parametrize("scale", (1.0, np.inf))
def test_a_gradient_that_is_not_finite_is_flagged(bench, rng, scale):
    if bench.traits.gpu:
        pytest.skip("GPUs split even small sums: the launch that adds the parts up checks them")
    fields = np.float32([[scale, 1, 0, *[0] * 13]])
    x = QuantizedTensor(bench.put(rng.integers(1, 9, (1, 4, 5, 6)), dtype="int8"), bench.put(fields), PLAIN)
    found, _ = Conv2D(6, 1).emit_backward_weights(bench, x, x, bench.empty((1, 1, 6, 6)), None, add=False)
    (flags,) = (buffer for buffer in bench.launches[-1].writes if buffer.role is Role.CHECK)
    bench.run()
    words = np.empty(flags.nbytes // 4, np.float32)
    bench.context.read(bench.memory[flags].handle, words)
    assert found.checked and words.any() == np.isinf(scale)


def test_a_nan_is_found(bench, rng):
    shape = (1, 4, 4, 6)
    x, kernel = Drawn(bench, rng, shape, PLAIN), Drawn(bench, rng, (1, 1, 6, 6), WEIGHTS)
    found = RangeStatistics(bench.empty((2, 16)))
    shift = bench.put(np.float32([0, 0, np.nan, 0, 0, 0]))
    Conv2D(6, 1).emit_linear(
        bench, x.ranged, kernel.ranged, Target(bench.empty(shape), statistics=found),
        Epilogue(None, shift),
    )  # fmt: skip
    bench.run()
    assert np.isnan(bench.get(found.parts)[:, CLIPPED].sum())


@pytest.mark.parametrize(
    ("unit", "op", "shape"),
    [
        ("none", Conv2D(33, 3, strides=2, padding=((0, 1), (1, 1))), (5, 9, 22)),
        ("AVX2", Conv2D(33, 3, strides=2, padding=((0, 1), (1, 1))), (5, 9, 22)),
        ("AVX512BW", DepthwiseConv2D((2, 3), strides=3, padding=((0, 1), (2, 1))), (5, 8, 17)),
    ],
)
def test_another_unit_gives_the_same_integers(bench, rng, unit, op, shape):
    """Others differ in `add_quads` alone, which tests/runtime/test_devices.py compares."""
    if unit != "none" and unit not in bench.context.device.units:
        pytest.skip("the device hasn't this unit")
    bench.traits = replace(bench.traits, find_units=lambda: (unit,))
    assert bench.traits.quads == ("" if unit == "none" else unit)
    check_integers(op, bench, rng, shape)


def test_pointwise_gradients_take_rows_of_whole_quads(bench, rng):
    bench.traits = replace(bench.traits, find_units=lambda: ("AVX2",))
    op, launches = Conv2D(16, 1, use_bias=False), bench.launches
    for height, width, row in ((4, 6, 12), (8, 7, 28), (7, 7, 49), (25, 25, 25), (4, 8, 8)):
        x, dy = (Drawn(bench, rng, (1, height, width, 16), PLAIN).ranged for _ in range(2))
        op.emit_backward_weights(bench, x, dy, bench.empty((1, 1, 16, 16)), None, add=False)
        assert launches.pop().arguments[7] == row


MATRIX_SHAPES = {
    "3 x 3": (Conv2D(33, 3, padding="same"), (7, 6, 17)),
    "of stride 2": (Conv2D(20, 3, 2, "same"), (7, 6, 35)),
    "larger stride than kernel": (Conv2D(16, 1, 2), (5, 6, 16)),
    "dilated": (Conv2D(16, (3, 2), 1, ((2, 1), (0, 3)), (2, 3)), (6, 7, 20)),
    "pointwise": (Conv2D(70, 1), (9, 8, 40)),
    "dense": (Dense(10), (100,)),
}


def matrix_units(bench) -> bool:
    """Give the bench a GPU's traits with matrix units, or plain C in their place. True if the device has them."""
    bench.traits = Traits(gpu=True, compute_units=2, find_units=bench.traits.find_units)
    if not (found := bench.traits.matrix_unit):
        bench.traits = replace(bench.traits, find_units=lambda: ("PLAIN_MMA",))
    return bool(found)


@pytest.mark.parametrize("name", MATRIX_SHAPES)
def test_matrix_units_give_the_same_integers(bench, rng, name):
    op, shape = MATRIX_SHAPES[name]
    if matrix_units(bench):
        every_choice(bench, lambda: check_integers(op, bench, rng, shape))
    elif name == "of stride 2":
        check_integers(op, bench, rng, shape)
    else:
        pytest.skip("no matrix units: emulating them takes long")
    assert not any("quantized_convolution" in kernel for kernel in bench.tried)


def test_an_op_without_integer_kernels(bench, rng):
    x = Drawn(bench, rng, (1, 2, 2, 16), PLAIN).ranged
    with pytest.raises(PlanError, match="Conv2D has no integer kernels"):
        Conv2D(16, 1, groups=2).emit_linear(bench, x, x, x.tensor, Epilogue())


@pytest.mark.parametrize("exact", (quantized.EXACT, 0))
def test_without_a_unit(bench, rng, monkeypatch, exact):
    """Sums are floats, or integers where floats don't hold them."""
    monkeypatch.setattr(quantized, "EXACT", exact)
    bench.traits = replace(bench.traits, find_units=tuple)
    check_integers(DepthwiseConv2D(3, strides=2, padding="same"), bench, rng, (5, 6, 17))


BOUNDS = {RELU: (0, np.inf), RELU6: (0, 6)}
BOUNDS |= {Function("clip", limits): limits for limits in ((-0.7, 2.3), (0.3, 5.0), (-3.0, -0.8))}
OPS = (Conv2D(32, 3, padding="same", use_bias=False), DepthwiseConv2D(3, padding="same", use_bias=False))


@pytest.mark.parametrize("function", BOUNDS, ids=str)
@pytest.mark.parametrize("op", OPS, ids=("convolution", "depthwise"))
@pytest.mark.parametrize("limits", ((-9, 11), (-0.5, 1.9), (0, 4)))
def test_bits_of_the_activation(bench, rng, op, function, limits):
    """With ranges that go beyond the bounds, and with narrower ones."""
    shape = (2, 9, 15, 32)
    weight = op.weights(shape[1:])["kernel"]
    x, kernel = Drawn(bench, rng, shape, PLAIN), Drawn(bench, rng, weight.packed_shape, WEIGHTS)
    sums = F(op.reference_forward([x.centred], {"kernel": kernel.q.reshape(weight.shape)})) * (kernel.scale * x.scale)
    scale, shift = F(6 / np.abs(sums).max() * rng.uniform(0.5, 2.0, 32)), F(rng.standard_normal(32))
    record, y_scale, zero = record_of(bench, PLAIN, *limits)
    y = QuantizedTensor(bench.empty(shape, dtype="int8"), record, PLAIN)
    epilogue = Epilogue(bench.put(scale), bench.put(shift), function)
    op.emit_linear(bench, x.ranged, kernel.ranged, Target(y), epilogue)
    bench.run()
    v = np.clip(sums * scale + shift, *F(BOUNDS[function]))
    exactly(bench.get(y.tensor, zero), PLAIN.encode(v, y_scale, zero))


OP, SHAPE = Conv2D(20, 3, padding="same"), (2, 9, 15, 20)
RANGES = OWN, SUM, END = (-900, 700), (-800, 900), (-100, 600)  # leave out some of the values


class Place:
    """Room for integers of SHAPE in a range."""

    def __init__(self, bench, limits: tuple[int, int]) -> None:
        record, self.scale, self.zero = record_of(bench, PLAIN, *limits)
        self.quantizer = Quantizer("", PLAIN, CurrentMinMax(), record)
        self.ranged = QuantizedTensor(bench.empty(SHAPE, dtype="int8"), record, PLAIN)

    def encoded(self, v: np.ndarray) -> np.ndarray:
        return PLAIN.encode(v, self.scale, self.zero)

    def rounded(self, v: np.ndarray) -> np.ndarray:
        return PLAIN.decode(self.encoded(v), self.scale, self.zero)


@pytest.mark.parametrize("activated", (False, True))
@pytest.mark.parametrize("gpu", (False, True), ids=("", "as GPUs do"))
def test_sums_have_the_bits_of_launches_of_their_own(bench, rng, activated, gpu):
    """And those of NumPy's int64 and float32."""
    if gpu:
        bench.traits = Traits(gpu=True, compute_units=1)
    weight = OP.weights(SHAPE[1:])["kernel"]
    x, kernel = Drawn(bench, rng, SHAPE, PLAIN), Drawn(bench, rng, weight.packed_shape, WEIGHTS)
    if not adds_residuals(bench, x.ranged):
        pytest.skip("the kernels of matrix units add no residuals")
    other, shift = Drawn(bench, rng, SHAPE, PLAIN), F(rng.standard_normal(20))
    epilogue = Epilogue(None, bench.put(shift))
    own, added, end, fused = (Place(bench, limits) for limits in (*RANGES, END))
    OP.emit_linear(bench, x.ranged, kernel.ranged, Target(own.ranged), epilogue)
    operands = [own.ranged, other.ranged]
    copy.emit_integer_sum(bench, operands, Target((added if activated else end).ranged), LINEAR)
    if activated:
        copy.emit_integer_sum(bench, [added.ranged], Target(end.ranged), RELU)
    residual = Residual(own.quantizer, other.ranged, *((added.quantizer, RELU) if activated else ()))
    OP.emit_linear(bench, x.ranged, kernel.ranged, Target(fused.ranged), epilogue, residual)
    bench.run()
    found = bench.get(fused.ranged.tensor, fused.zero)
    exactly(found, bench.get(end.ranged.tensor, end.zero))

    sums = OP.reference_forward([x.centred], {"kernel": kernel.q.reshape(weight.shape), "bias": np.int64(0)})
    v = own.rounded(F(sums) * (kernel.scale * x.scale) + shift) + other.values
    exactly(found, end.encoded(np.maximum(added.rounded(v), 0) if activated else v))
