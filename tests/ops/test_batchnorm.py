"""BatchNormalization and SubSpectralNormalization: kept and batch statistics, forward and backward."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.launch import Role
from edgelearn.ops import (
    BatchNormalization,
    Conv2D,
    DepthwiseConv2D,
    Epilogue,
    Format,
    LinearOp,
    SubSpectralNormalization,
    Target,
    Tensor,
    Traits,
    batchnorm,
)
from edgelearn.ops.formats import QuantizedTensor, RangeStatistics, emit_prepared
from edgelearn.ops.observers import InHindsightMinMax
from edgelearn.ops.quantize import emit_next_range, emit_quantize, record_parts
from edgelearn.ops.tensor import LINEAR, RELU, RELU6

from .harness import AS_GPUS_TOO, SIZES, close, every_choice
from .integers import Drawn
from .test_quantize import SEED, STEP, quantizer

OP = BatchNormalization(momentum=0.9, epsilon=1e-3)
SUB_BANDS = SubSpectralNormalization(momentum=0.9, sub_bands=5)
IMAGES = [(1, 5, 7, 1), (2, 5, 1, 33), (3, 10, 13, 16), (2, 20, 101, 17)]  # images, frequency, time, channels


def draw_weights(rng, parts):
    return {
        "gamma": rng.uniform(0.5, 2.0, parts),
        "beta": rng.standard_normal(parts),
        "moving_mean": rng.standard_normal(parts),
        "moving_variance": rng.uniform(0.1, 3.0, parts),
    }


def put_all(bench, weights):
    return {role: bench.put(value) for role, value in weights.items()}


def read_row(bench, tensor):
    """One value a channel, or one a channel of each sub-band; what lies in the padding is nobody's business."""
    padded = Tensor(tensor.buffer, (*tensor.shape[:-1], tensor.blocks * 16))
    return bench.get(padded)[..., : tensor.channels]


@AS_GPUS_TOO
@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("with_bias", (False, True))
def test_kept_statistics_fold_to_scale_and_shift(bench, rng, channels, with_bias):
    w, bias = draw_weights(rng, channels), rng.standard_normal(channels)
    s = batchnorm.emit_kept_statistics(bench, OP, put_all(bench, w), bench.put(bias) if with_bias else None)
    bench.run()
    inverse = 1 / np.sqrt(w["moving_variance"] + OP.epsilon)
    scale = w["gamma"] * inverse
    close(bench.get(s.scale), scale)
    close(bench.get(s.shift), w["beta"] + (bias * with_bias - w["moving_mean"]) * scale)
    close(read_row(bench, s.inverse), inverse)
    assert s.scale.buffer.role is Role.PREPARED


def check_forward(bench, rng, *shape, op=OP):
    """With each candidate of each decision; returns what was tried, by kernel. Rows far from zero: variances must not
    come from a difference of squares."""
    y = rng.standard_normal(shape) * rng.uniform(0.1, 2.0, shape[-1]) + 100.0
    w = draw_weights(rng, op.weights(shape[1:])["gamma"].shape)
    mean, variance = op.reference_moments(y.astype(np.float32).astype(np.float64))
    expected = op.reference_forward([y.astype(np.float32).astype(np.float64)], w, batch=True)
    clipped = np.clip(expected, 0, 6)
    # y * scale and the shift, up to thousands, cancel out; processors without FMA round both
    rounded = np.abs(mean * w["gamma"] / np.sqrt(variance + op.epsilon)).max() * 2**-23

    def check():
        tw, tz = put_all(bench, w), bench.empty(y.shape)
        s = batchnorm.emit_batch(bench, op, bench.put(y), tw, Target(tz), RELU6)
        bench.run()
        close(bench.get(s.mean), mean, 2e-6)
        close(read_row(bench, s.inverse), 1 / np.sqrt(variance + op.epsilon), 1e-4)
        close(bench.get(tw["moving_mean"]), 0.9 * w["moving_mean"] + 0.1 * mean)
        close(bench.get(tw["moving_variance"]), 0.9 * w["moving_variance"] + 0.1 * variance)
        close(bench.get(tz), clipped, 3e-4 + rounded / (clipped.max() + 1e-6))

    return every_choice(bench, check)


@pytest.mark.parametrize(
    ("op", "shape"),
    [*((OP, (rows, c)) for rows in (1, 2, 129, 1000, 1537) for c in (1, 16, 33)), *((SUB_BANDS, s) for s in IMAGES)],
    ids=str,
)
def test_batch_statistics(bench, rng, op, shape):
    """Rows that fall into groups unevenly."""
    bench.traits = Traits(compute_units=2, vector_width=bench.traits.vector_width)
    assert len(check_forward(bench, rng, *shape, op=op)["batchnorm_forward"]) == 2


def check_statistics(bench, y: np.ndarray, tolerance: float) -> None:
    """The mean and deviation of rows, with each candidate of each decision."""
    w = {"gamma": np.ones(y.shape[1]), "beta": np.zeros(y.shape[1])}
    w |= {"moving_mean": w["beta"], "moving_variance": w["gamma"]}

    def check():
        s = batchnorm.emit_batch(bench, OP, bench.put(y), put_all(bench, w), Target(bench.empty(y.shape)), LINEAR)
        bench.run()
        close(bench.get(s.mean), y.mean(0), max(tolerance, 1e-6))
        close(read_row(bench, s.inverse), 1 / np.sqrt(y.var(0) + OP.epsilon), tolerance)

    every_choice(bench, check)


def test_statistics_of_many_rows_are_as_exact(bench, rng):
    """One float32 sum over all would be off by 1e-5: enough to flip derivatives of ReLU6 in the layers above."""
    check_statistics(bench, rng.standard_normal((1 << 17, 3)).astype(np.float32).astype(np.float64) + 1, 5e-7)


def test_uneven_parts_are_weighed_by_their_rows(bench):
    bench.traits = Traits(compute_units=1, vector_width=bench.traits.vector_width)
    rows = 7 * 73 + 2
    groups, count = bench.split_rows(rows, 1)
    assert groups > 1 and groups * count != rows
    y = np.zeros((rows, 1))
    y[-(rows - (groups - 1) * count) :] = 10.0  # the last, short group alone
    check_statistics(bench, y, 1e-6)


def check_backward(bench, rng, *shape, kept, op=OP):
    """With each candidate of each decision; returns what was tried, by kernel."""
    y, dz = rng.standard_normal(shape) * 2 + 0.5, rng.standard_normal(shape)
    parts = op.weights(shape[1:])["gamma"].shape
    w, other = draw_weights(rng, parts), dz * 0.3
    (expected,), gradients = op.reference_backward([y], w, dz, batch=not kept)
    alone = y[..., 0].size == np.prod(parts[:-1])  # one row has no gradient through its own statistics
    largest = np.abs(dz).max() * 4

    def check():
        ty, tdz, tw = bench.put(y), bench.put(dz), put_all(bench, w)
        if kept:
            s = batchnorm.emit_kept_statistics(bench, op, tw, None)
        else:
            s = batchnorm.emit_batch(bench, op, ty, tw, Target(bench.empty(y.shape)), LINEAR)
        dgamma, dbeta, dy, tother = bench.empty(parts), bench.empty(parts), bench.empty(y.shape), bench.put(other)
        batchnorm.emit_backward(bench, ty, tdz, s, dgamma, dbeta, Target(dy), kept, add=False)
        more = Target(tother, ty, RELU, accumulate=True)
        batchnorm.emit_backward(bench, ty, tdz, s, dgamma, dbeta, more, kept, add=True)
        bench.run()
        assert np.abs(bench.get(dy) - expected).max() < 3e-5 * largest
        assert np.abs(bench.get(tother) - (other + expected * (y > 0))).max() < 3e-5 * largest
        close(bench.get(dgamma), 2 * gradients["gamma"] + 1e-12, 1e-4 if kept or not alone else np.inf)
        close(bench.get(dbeta), 2 * gradients["beta"])

    return every_choice(bench, check)


@pytest.mark.parametrize("kept", (True, False), ids=("kept", "batch"))
@pytest.mark.parametrize(
    ("op", "shape"),
    [*((OP, shape) for shape in ((1, 1), (3, 33), (1000, 16), (1537, 31))), *((SUB_BANDS, shape) for shape in IMAGES)],
    ids=str,
)
def test_backward(bench, rng, op, shape, kept):
    assert len(check_backward(bench, rng, *shape, kept=kept, op=op)["batchnorm_backward"]) == 4


@pytest.mark.parametrize("kind", ("halves", "integers"))
@pytest.mark.parametrize(("rows", "channels"), [(3, 33), (1537, 31)])
def test_batch_statistics_of_what_is_stored(bench, rng, rows, channels, kind):
    drawn = Drawn(bench, rng, (rows, channels), Format())
    halves = rng.standard_normal((rows, channels)).astype(np.float16)
    y = np.float64(halves if kind == "halves" else drawn.values)
    w, dz = draw_weights(rng, channels), rng.standard_normal((rows, channels))
    z = OP.reference_forward([y], w, batch=True)
    (dy,), gradients = OP.reference_backward([y], w, dz, batch=True)

    def check():
        ty = bench.put(halves, dtype="float16") if kind == "halves" else drawn.ranged
        tz, tdy, dgamma, dbeta = (bench.empty(shape) for shape in (y.shape, y.shape, (channels,), (channels,)))
        s = batchnorm.emit_batch(bench, OP, ty, put_all(bench, w), Target(tz), RELU)
        batchnorm.emit_backward(bench, ty, bench.put(dz), s, dgamma, dbeta, Target(tdy), kept=False, add=False)
        bench.run()
        close(bench.get(tz), np.maximum(z, 0), 1e-4)
        close(bench.get(tdy), dy, 1e-4)
        close(bench.get(dgamma), gradients["gamma"], 1e-4)

    assert len(every_choice(bench, check)["batchnorm_forward"]) == 2


def check_quantized(bench, rng, *shape, dtype, rounding, op=OP):
    """The same as if it were quantized afterwards, but for values that the last bit of a float rounds elsewhere."""
    fmt, y, dz = Format(8, rounding=rounding), rng.standard_normal(shape), rng.standard_normal(shape)
    weight = op.weights(shape[1:])["gamma"].shape
    w = draw_weights(rng, weight)
    ty, tw, dgamma, dbeta = bench.put(y), put_all(bench, w), bench.empty(weight), bench.empty(weight)
    bench.training = bench.control(seed=SEED, step=STEP, seen=7)
    s = batchnorm.emit_batch(bench, op, ty, tw, Target(bench.empty(shape)), LINEAR)

    def forward(target):
        batchnorm.emit_batch(bench, op, ty, tw, target, RELU)

    def backward(target):
        batchnorm.emit_backward(bench, ty, bench.put(dz), s, dgamma, dbeta, target, kept=False, add=False)

    def check(emit):
        q = quantizer(bench, fmt, InHindsightMinMax(), next_low=-1.1, next_high=1.7)
        emit_next_range(bench, q)
        plain, noted, after, written = (bench.empty(shape, dtype=d) for d in ("float32", "float32", dtype, dtype))
        found, replay = (bench.empty((record_parts(bench, plain), 16)) for _ in range(2))
        emit(Target(plain))
        emit_quantize(bench, q, plain, after)
        emit(Target(noted, statistics=RangeStatistics(found)))
        quantized = QuantizedTensor(written, q.record, fmt, q.name)
        emit(Target(quantized, statistics=RangeStatistics(replay)))
        bench.run()
        v, record = bench.get(plain), bench.get(q.record)[0]
        close(bench.get(noted), v, 1e-6)
        zero = int(record[2]) if dtype == "int8" else 0
        apart = np.abs(bench.get(written, zero).astype(float) - bench.get(after, zero))
        assert apart.max() <= (1 if dtype == "int8" else record[0]) * 1.001
        assert (apart > 0).mean() < 1e-3
        for records in (bench.get(found), bench.get(replay)):
            least, most, _, count = records[:, 5:9].T
            close(np.array([least.min(), most.max(), count.sum()]), np.array([min(v.min(), 0), v.max(), v.size]), 1e-6)

    for emit in (forward, backward):
        every_choice(bench, lambda emit=emit: check(emit))


@pytest.mark.parametrize("rounding", ("nearest", "stochastic"))
@pytest.mark.parametrize("dtype", ("float32", "int8"))
@pytest.mark.parametrize("channels", (1, 33))
def test_quantized_as_it_is_written(bench, rng, channels, dtype, rounding):
    check_quantized(bench, rng, 6, 5, 31, channels, dtype=dtype, rounding=rounding)


def test_sub_bands_quantized_as_they_are_written(bench, rng):
    check_quantized(bench, rng, 4, 10, 13, 17, dtype="float32", rounding="stochastic", op=SUB_BANDS)


def test_as_gpus_do(bench, rng, monkeypatch):
    """Several work-groups normalize a set, each of which combines what groups of rows have left."""
    bench.traits, seen, launch = Traits(gpu=True, compute_units=2), set(), bench.launch
    monkeypatch.setattr(bench, "launch", lambda *a, **kw: (seen.add((a[1], "direct" in kw)), launch(*a, **kw)))
    check_forward(bench, rng, 600, 33)
    check_backward(bench, rng, 600, 31, kept=False)
    check_backward(bench, rng, 2, 20, 101, 33, kept=False, op=SUB_BANDS)
    for dtype, channels in (("int8", 33), ("float32", 1)):
        check_quantized(bench, rng, 6, 5, 31, channels, dtype=dtype, rounding="stochastic")
    check_quantized(bench, rng, 4, 10, 13, 17, dtype="float32", rounding="stochastic", op=SUB_BANDS)
    assert seen >= {(f"finish_{way}", direct) for way in ("forward", "backward") for direct in (True, False)}


def test_gradients_without_a_target(bench, rng):
    y, dz, w = rng.standard_normal((70, 5)), rng.standard_normal((70, 5)), draw_weights(rng, 5)
    s = batchnorm.emit_kept_statistics(bench, OP, put_all(bench, w), None)
    dgamma, dbeta = bench.empty((5,)), bench.empty((5,))
    batchnorm.emit_backward(bench, bench.put(y), bench.put(dz), s, dgamma, dbeta, None, kept=True, add=False)
    assert [launch.kernel for launch in bench.launches][-1] == "finish_gradients"
    bench.run()
    close(bench.get(dgamma), OP.reference_backward([y], w, dz)[1]["gamma"])


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("sub_bands", (1, 2))
def test_kept_statistics_of_sub_bands(bench, rng, sub_bands, channels):
    op, x = SubSpectralNormalization(sub_bands=sub_bands), rng.standard_normal((3, 6, 4, channels))
    w, tz = draw_weights(rng, (sub_bands, channels)), bench.empty(x.shape)
    s = batchnorm.emit_kept_statistics(bench, op, put_all(bench, w), None)
    batchnorm.emit_normalize(bench, bench.put(x), s, Target(tz), RELU)
    bench.run()
    close(bench.get(tz), np.maximum(op.reference_forward([x], w), 0))


def test_sub_bands_do_not_meet(rng):
    """Moving one sub-band by any amount changes nothing."""
    op, x, w = SubSpectralNormalization(sub_bands=3), rng.standard_normal((2, 6, 5, 3)), draw_weights(rng, (3, 3))
    moved = x.copy()
    moved[:, 2:4] += 7.0
    before, after = (op.reference_forward([v], w, batch=True) for v in (x, moved))
    assert np.abs(after - before).max() < 1e-12


def centre(op: LinearOp, channels: int) -> np.ndarray:
    """The kernel with which an op copies its input."""
    kernel = np.zeros(op.kernel((9, 9, channels)).shape)
    middle = tuple(size // 2 for size in kernel.shape[:2])
    kernel[middle] = 1.0 if isinstance(op, DepthwiseConv2D) else np.eye(channels)
    return kernel.reshape(op.kernel((9, 9, channels)).packed_shape)


@pytest.mark.parametrize("shape", [(2, 24, 26, 32), (1, 15, 37, 33)], ids=str)
@pytest.mark.parametrize(
    "op", [Conv2D(32, 1), Conv2D(32, 3, padding="same"), DepthwiseConv2D(3, padding="same")], ids=str
)
def test_kernels_take_statistics_of_what_they_write(bench, rng, op, shape):
    """Rows far from zero, in groups of all sizes, the last ones short: no difference of squares, no row twice."""
    if bench.traits.gpu:
        pytest.skip("work-items of GPUs have too few rows")
    *_, channels = shape
    op = replace(op, filters=channels) if isinstance(op, Conv2D) else op
    x = (rng.standard_normal(shape) * rng.uniform(0.1, 2.0, channels) + 100.0).astype(np.float32)
    x[0, 0, 0] += 50.0
    rows = x.reshape(-1, channels).astype(np.float64)
    w, moments = draw_weights(rng, channels), []

    def check():
        tx, y = bench.put(x), bench.empty(shape)
        kernel = emit_prepared(bench, op.forward_view(bench, tx, bench.put(centre(op, channels))))
        op.emit_linear(bench, tx, kernel, y, Epilogue(None, bench.put(np.zeros(channels))))
        s = batchnorm.emit_batch(bench, OP, y, put_all(bench, w), Target(bench.empty(shape)), LINEAR)
        moments.append(any(("MOMENTS", 1) in launch.macros for launch in bench.launches))
        bench.run()
        exact = moments[-1] and "winograd" in str(bench.tried)  # whose sums round what they copy
        close(bench.get(s.mean), rows.mean(0), 2e-6)
        close(read_row(bench, s.inverse), 1 / np.sqrt(rows.var(0) + OP.epsilon), 1e-3 if exact else 2e-5)

    every_choice(bench, check, pairs=False)
    assert any(moments)
