"""Linear layers and what stands between them in halves, by plain code: against float64 from the same rounded values."""

import numpy as np
import pytest

from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BFloat16,
    Compute,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Epilogue,
    Flatten,
    Float16,
    GlobalAveragePooling2D,
    MaxPooling2D,
    ReLU,
    Target,
    ZeroPadding2D,
    finish,
)
from edgelearn.ops.batchnorm import BatchNormalization, emit_backward, emit_batch
from edgelearn.ops.emit import emit_channel_sums
from edgelearn.ops.formats import emit_prepared
from edgelearn.ops.target import emit_copy, emit_padded
from edgelearn.ops.tensor import LINEAR, RELU6, pack
from edgelearn.tuned import Traits

from .harness import Workbench, close

FORMATS = {"bf16": (BFloat16(), 2.0**-8), "fp16": (Float16(), 2.0**-11)}  # with the rounding of a value
LINEAR_OPS = {
    "convolution": (Conv2D(33, 3, 2, "same", use_bias=False), (5, 6, 17)),
    "pointwise": (Conv2D(20, 1, use_bias=False), (3, 5, 33)),
    "grouped": (Conv2D(6, 3, groups=2, use_bias=False), (4, 3, 8)),
    "depthwise": (DepthwiseConv2D(3, use_bias=False, padding="same"), (4, 5, 20)),
    "dense": (Dense(33, use_bias=False), (40,)),
}
PLAIN_OPS = {
    "activation": (ReLU(6), (3, 5, 20)),
    "maximum": (MaxPooling2D(3, 2, "same"), (5, 6, 20)),
    "average": (AveragePooling2D(2), (4, 6, 20)),
    "global average": (GlobalAveragePooling2D(), (3, 4, 20)),
    "padding": (ZeroPadding2D(1), (3, 4, 20)),
    "flatten": (Flatten(), (2, 3, 20)),
    "add": (Add(), (3, 4, 20), (3, 4, 20), (3, 4, 20)),
}


class Halves:
    """Arrays in a format on a bench, and what a bench has in that format."""

    def __init__(self, bench: Workbench, name: str) -> None:
        self.bench, (self.format, self.unit) = bench, FORMATS[name]
        bench.compute = Compute(name, plain=True)

    def put(self, array: np.ndarray):
        tensor = self.empty(array.shape)
        emit_copy(self.bench, self.bench.put(array), Target(tensor))
        return tensor

    def empty(self, shape: tuple[int, ...]):
        return self.bench.empty(shape, dtype=self.format.storage)

    def get(self, tensor) -> np.ndarray:
        floats = self.bench.empty(tensor.shape)
        emit_copy(self.bench, tensor, Target(floats))
        self.bench.run()
        return self.bench.get(floats)

    def draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return self.format.round(rng.standard_normal(shape).astype(np.float32)).astype(np.float64)


@pytest.fixture(params=FORMATS)
def halves(bench, request) -> Halves:
    return Halves(bench, request.param)


@pytest.mark.parametrize("name", LINEAR_OPS)
def test_linear(halves, rng, name):
    op, shape = LINEAR_OPS[name]
    check_linear_halves(halves, rng, op, shape)


def check_linear_halves(halves: Halves, rng: np.random.Generator, op, shape, n: int = 2) -> None:
    """Forward with epilogue; backward to data, masked and added to another share; weights and sums."""
    bench, weight = halves.bench, op.weights(shape)["kernel"]
    x, kernel = halves.draw(rng, n, *shape), halves.draw(rng, *weight.shape)
    y = op.reference_forward([x], {"kernel": kernel})
    shift = rng.standard_normal(y.shape[-1])
    dy, share = halves.draw(rng, *y.shape), halves.draw(rng, *x.shape)
    (dx,), gradients = op.reference_backward([x], {"kernel": kernel}, dy)
    tx, tk, ty = halves.put(x), halves.put(kernel.reshape(weight.packed_shape)), halves.empty(y.shape)
    op.emit_linear(bench, tx, tk, ty, Epilogue(None, bench.put(shift), RELU6))
    close(halves.get(ty), np.clip(y + shift, 0, 6), halves.unit)
    view = op.view(tx, bench.put(kernel.reshape(weight.packed_shape)), None)
    prepared, tdx, tdy = halves.empty(view.shape), halves.put(share), halves.put(dy)
    halves.format.emit_encode_weights(bench, view, prepared)
    op.emit_backward_data(bench, tx, prepared, tdy, Target(tdx, tx, RELU6, accumulate=True))
    close(halves.get(tdx), dx * ((x > 0) & (x < 6)) + share, halves.unit)
    tg, sums = bench.empty(weight.packed_shape), bench.empty(y.shape[-1:])
    for add in (False, True):
        for found in op.emit_backward_weights(bench, tx, tdy, tg, sums, add):
            finish.emit_sum(bench, found)
        bench.run()
        close(bench.get(tg), gradients["kernel"].reshape(weight.packed_shape) * (1 + add))
        close(bench.get(sums), dy.sum(tuple(range(dy.ndim - 1))) * (1 + add))


@pytest.mark.parametrize("name", PLAIN_OPS)
def test_plain(halves, rng, name):
    op, *shapes = PLAIN_OPS[name]
    bench, xs = halves.bench, [halves.draw(rng, 2, *shape) for shape in shapes]
    assert op.takes_halves(*shapes)
    y = op.reference_forward(xs, {})
    dy = halves.draw(rng, *y.shape)
    dxs, _ = op.reference_backward(xs, {}, dy)
    inputs, ty = [halves.put(x) for x in xs], halves.empty(y.shape)
    op.emit_forward(bench, inputs, ty)
    close(halves.get(ty), y, 2 * halves.unit)
    targets = [Target(halves.empty(x.shape)) for x in xs]
    op.emit_backward(bench, inputs, ty, halves.put(dy), targets)
    for target, dx in zip(targets, dxs, strict=True):
        close(halves.get(target.tensor), dx, 2 * halves.unit)


def test_batchnorm(halves, rng):
    op, bench, y = BatchNormalization(), halves.bench, halves.draw(rng, 4, 3, 5, 20)
    weights = {role: rng.uniform(0.5, 1.5, 20) for role in op.weights((20,))}
    ty, tz = halves.put(y), halves.empty(y.shape)
    tensors = {role: bench.put(w) for role, w in weights.items()}
    statistics = emit_batch(bench, op, ty, tensors, Target(tz), LINEAR)
    close(halves.get(tz), op.reference_forward([y], weights, batch=True), halves.unit)
    dz = halves.draw(rng, *y.shape)
    (dy,), gradients = op.reference_backward([y], weights, dz, batch=True)
    tdy, dgamma, dbeta = halves.empty(y.shape), bench.empty((20,)), bench.empty((20,))
    emit_backward(bench, ty, halves.put(dz), statistics, dgamma, dbeta, Target(tdy), False, False)
    close(halves.get(tdy), dy, halves.unit)
    close(bench.get(dgamma), gradients["gamma"])
    close(bench.get(dbeta), gradients["beta"])


def test_sums_and_narrow_inputs(halves, rng):
    x = halves.draw(rng, 2, 4, 5, 3)
    tensor, sums = halves.empty(x.shape), halves.bench.empty((3,))
    emit_padded(halves.bench, halves.bench.put(x, 3), tensor)
    finish.emit_sum(halves.bench, emit_channel_sums(halves.bench, tensor, sums, False))
    assert np.array_equal(halves.get(tensor), x)
    close(halves.bench.get(sums), x.sum((0, 1, 2)))


@pytest.mark.parametrize("name", ("convolution", "pointwise", "dense"))
def test_tf32(bench, rng, name):
    """Products of values that TF32 has are as exact as those of floats; others are rounded to these, ties away from
    0."""
    op, shape = LINEAR_OPS[name]
    weight = op.weights(shape)["kernel"]
    x, kernel = (rng.standard_normal(s).astype(np.float32) for s in ((2, *shape), weight.shape))
    y = op.reference_forward([rounded(x)], {"kernel": rounded(kernel)})
    dy = rng.standard_normal(y.shape).astype(np.float32)
    tx, tk = bench.put(x), bench.put(kernel.reshape(weight.packed_shape))
    ty, tdx, tdy, tg = bench.empty(y.shape), bench.empty(x.shape), bench.put(dy), bench.empty(weight.packed_shape)
    bench.compute = Compute("tf32", plain=True)
    op.emit_linear(bench, tx, tk, ty, Epilogue())
    op.emit_backward_data(bench, tx, emit_prepared(bench, op.backward_view(bench, tx, tk, None)), tdy, Target(tdx))
    kernel_sum, _ = op.emit_backward_weights(bench, tx, tdy, tg, None, False)
    finish.emit_sum(bench, kernel_sum)
    bench.run()
    (dx,), gradients = op.reference_backward([rounded(x)], {"kernel": rounded(kernel)}, rounded(dy))
    close(bench.get(ty), y)
    close(bench.get(tdx), dx)
    close(bench.get(tg), gradients["kernel"].reshape(weight.packed_shape))


def rounded(v: np.ndarray) -> np.ndarray:
    """To TF32, in float64."""
    return ((v.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64)


def test_every_bfloat(bench):
    """All of them, ties between them and their neighbours, NaN and infinity among them, are rounded as by NumPy."""
    whole = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([whole, whole + 0x7FFF, whole + 0x8000, whole + 0x8001]).reshape(-1, 32)
    x, y = bench.empty(bits.shape), bench.empty(bits.shape, dtype="bfloat16")
    bench.context.write(bench.memory[x.buffer].handle, pack(bits.view(np.float32)))
    BFloat16().emit_encode(bench, x, y)
    bench.run()
    expected = BFloat16().encode(bits.view(np.float32))
    assert np.array_equal(bench.get(y), expected)
    assert np.array_equal(np.isnan(bits.view(np.float32)), np.isnan(BFloat16().decode(expected)))


@pytest.mark.parametrize("name", LINEAR_OPS)
def test_linear_as_gpus_do(halves, rng, name):
    halves.bench.traits = Traits(gpu=True, compute_units=8)
    op, shape = LINEAR_OPS[name]
    check_linear_halves(halves, rng, op, shape)
