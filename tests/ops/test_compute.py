"""Layers in each compute type, by plain code and by matrix units: against float64 from the same rounded values."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.device import Traits
from edgelearn.ops import (
    BatchNormalization,
    BFloat16,
    Compute,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Epilogue,
    Target,
    finish,
)
from edgelearn.ops.batchnorm import emit_backward, emit_batch
from edgelearn.ops.convolution import BySquares
from edgelearn.ops.emit import emit_channel_sums
from edgelearn.ops.formats import emit_prepared
from edgelearn.ops.target import emit_padded
from edgelearn.ops.tensor import LINEAR, pack, unpack

from .harness import AS_GPUS_TOO, Workbench, close
from .linear import FORMATS, TF32, Floats, Halves, check_linear, rounded_to_tf32

LINEAR_OPS = {
    "convolution": (Conv2D(33, 3, 2, "same"), (5, 6, 17)),
    "pointwise": (Conv2D(20, 1), (3, 5, 33)),
    "grouped": (Conv2D(6, 3, groups=2), (4, 3, 8)),
    "depthwise": (DepthwiseConv2D(3, padding="same"), (4, 5, 20)),
    "dense": (Dense(33), (40,)),
}
PLAIN_OPS = {
    "activation": (ops.ReLU(6), (3, 5, 20)),
    "maximum": (ops.MaxPooling2D(3, 2, "same"), (5, 6, 20)),
    "average": (ops.AveragePooling2D(2), (4, 6, 20)),
    "global average": (ops.GlobalAveragePooling2D(), (3, 4, 20)),
    "padding": (ops.ZeroPadding2D(1), (3, 4, 20)),
    "flatten": (ops.Flatten(), (2, 3, 20)),
    "add": (ops.Add(), (3, 4, 20), (3, 4, 20), (3, 4, 20)),
    "product": (ops.Multiply(), (4, 5, 20), (4, 5, 20)),
    "a weight for each channel": (ops.Multiply(), (4, 5, 20), (1, 1, 20)),
    "quotient": (ops.Divide(), (3, 1), (3, 20)),
    "whole blocks of channels": (ops.SliceChannels(16, 32), (5, 60)),
    "channels": (ops.SliceChannels(3, 20), (5, 40)),
    "layers": (ops.LayerNormalization(center=False), (5, 40)),
    "groups": (ops.GroupNormalization(groups=4), (3, 2, 20)),
}
ATTENTION = {
    "heads of blocks": (ops.Attention(2, causal=True), (70, 32), (70, 32), (70, 32)),
    "wide heads, a mask": (ops.Attention(2, 1), (9, 160), (75, 80), (75, 80), (75,)),
    "other heads": (ops.Attention(2), (9, 34), (19, 34), (19, 34), (19,)),
}


@pytest.fixture(params=FORMATS)
def halves(bench, request) -> Halves:
    return Halves(bench, request.param)


# Kernels for GPUs, and those of attention, differ by the format in how they read and write values alone.
TURNS = dict(zip(LINEAR_OPS, itertools.cycle(FORMATS), strict=False))
OWN = [(name, "", kind) for name in LINEAR_OPS for kind in FORMATS]


@pytest.mark.parametrize(
    ("name", "bench", "halves"),
    [*OWN, *((name, "as GPUs do", TURNS[name]) for name in LINEAR_OPS)],
    indirect=["bench", "halves"],
)
def test_linear_ops_of_halves(halves, rng, name):
    op, shape = LINEAR_OPS[name]
    check_linear(op, halves.bench, rng, shape, numbers=halves)


@pytest.mark.parametrize("name", PLAIN_OPS)
def test_plain_ops_of_halves(halves, rng, name):
    op, *shapes = PLAIN_OPS[name]
    bench, xs = halves.bench, [halves.draw(rng, 2, *shape) for shape in shapes]
    assert op.takes_halves(*shapes)
    weights = {role: rng.uniform(0.5, 1.5, w.shape) for role, w in op.weights(*shapes).items()}
    y = op.reference_forward(xs, weights)
    dy = halves.draw(rng, *y.shape)
    dxs, dweights = op.reference_backward(xs, weights, dy)
    inputs, ty = [*(halves.put(x) for x in xs), *map(bench.put, weights.values())], halves.empty(y.shape)
    op.emit_forward(bench, inputs, ty)
    close(halves.get(ty), y, 2 * halves.tolerance)
    targets, gradients = [halves.empty(x.shape) for x in xs], [bench.empty(w.shape) for w in weights.values()]
    sums = op.emit_backward(bench, inputs, ty, halves.put(dy), [Target(t) for t in [*targets, *gradients]])
    for gradient_sum in sums or ():
        finish.emit_sum(bench, gradient_sum)
    for target, dx in zip(targets, dxs, strict=True):
        close(halves.get(target), dx, 2 * halves.tolerance)
    for gradient, expected in zip(gradients, dweights.values(), strict=True):
        close(bench.get(gradient), expected)


ATTENDING = [(name, traits) for name in ATTENTION for traits in ("own", "GPU", "units")]


@pytest.mark.parametrize(
    ("name", "traits", "halves"),
    [(*case, kind) for case, kind in zip(ATTENDING, itertools.cycle(FORMATS), strict=False)],
    indirect=["halves"],
)
def test_attention_of_halves(halves, rng, name, traits):
    """By matrix units weights are rounded to halves, too, as they are multiplied."""
    op, *shapes = ATTENTION[name]
    bench = halves.bench
    if traits != "own":
        found = bench.traits.find_units() if bench.traits.matrix_unit else ("PLAIN_MMA",)
        bench.traits = Traits(gpu=True, compute_units=2, find_units=lambda: found)
    bench.compute = replace(bench.compute, plain=traits != "units")
    xs = [halves.draw(rng, 2, *shape) for shape in shapes]
    if len(xs) == 4:
        xs[3] = 1.0 * (xs[3] > 0)
    y = op.reference_forward(xs, {})
    dy = halves.draw(rng, *y.shape)
    dxs, _ = op.reference_backward(xs, {}, dy)
    inputs, ty, tdy = [halves.put(x) for x in xs], halves.empty(y.shape), halves.put(dy)
    op.emit_forward(bench, inputs, ty)
    multiplies = traits == "units" and name != "other heads"  # of blocks of channels alone
    assert (bench.launches[-1].source == "attention_units.cl") == multiplies
    close(halves.get(ty), y, 2 * halves.tolerance)
    targets = [halves.empty(x.shape) for x in xs[:3]]
    op.emit_backward(bench, inputs, ty, tdy, [*map(Target, targets), None, None][: len(xs)])
    for target, dx in zip(targets, dxs, strict=False):
        close(halves.get(target), dx, 4 * halves.tolerance)


def test_batchnorm_of_halves(halves, rng):
    op, bench, y = BatchNormalization(), halves.bench, halves.draw(rng, 4, 3, 5, 20)
    weights = {role: rng.uniform(0.5, 1.5, 20) for role in op.weights((20,))}
    ty, tz = halves.put(y), halves.empty(y.shape)
    tensors = {role: bench.put(w) for role, w in weights.items()}
    statistics = emit_batch(bench, op, ty, tensors, Target(tz), LINEAR)
    close(halves.get(tz), op.reference_forward([y], weights, batch=True), halves.tolerance)
    dz = halves.draw(rng, *y.shape)
    (dy,), gradients = op.reference_backward([y], weights, dz, batch=True)
    tdy, dgamma, dbeta = halves.empty(y.shape), bench.empty((20,)), bench.empty((20,))
    emit_backward(bench, ty, halves.put(dz), statistics, dgamma, dbeta, Target(tdy), False, False)
    close(halves.get(tdy), dy, halves.tolerance)
    close(bench.get(dgamma), gradients["gamma"])
    close(bench.get(dbeta), gradients["beta"])


def test_sums_and_narrow_inputs_of_halves(halves, rng):
    x = halves.draw(rng, 2, 4, 5, 3)
    tensor, sums = halves.empty(x.shape), halves.bench.empty((3,))
    emit_padded(halves.bench, halves.bench.put(x, 3), tensor)
    finish.emit_sum(halves.bench, emit_channel_sums(halves.bench, tensor, sums, False))
    assert np.array_equal(halves.get(tensor), x)
    close(halves.bench.get(sums), x.sum((0, 1, 2)))


@pytest.mark.parametrize("name", ("convolution", "pointwise", "dense"))
def test_floats_are_rounded_to_tf32(bench, rng, name):
    """Ties away from 0."""
    op, shape = LINEAR_OPS[name]
    weight = op.weights(shape)["kernel"]
    x, kernel = (rng.standard_normal(s).astype(np.float32) for s in ((2, *shape), weight.shape))
    rx, own = rounded_to_tf32(x), {"kernel": rounded_to_tf32(kernel), "bias": 0.0}
    y = op.reference_forward([rx], own)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    (dx,), gradients = op.reference_backward([rx], own, rounded_to_tf32(dy))
    tx, tk = bench.put(x), bench.put(kernel.reshape(weight.packed_shape))
    ty, tdx, tdy, tg = bench.empty(y.shape), bench.empty(x.shape), bench.put(dy), bench.empty(weight.packed_shape)
    bench.compute = Compute("tf32", plain=True)
    op.emit_linear(bench, tx, tk, ty, Epilogue())
    op.emit_backward_data(bench, tx, emit_prepared(bench, op.backward_view(bench, tx, tk, None)), tdy, Target(tdx))
    finish.emit_sum(bench, op.emit_backward_weights(bench, tx, tdy, tg, None, False)[0])
    bench.run()
    close(bench.get(ty), y)
    close(bench.get(tdx), dx)
    close(bench.get(tg), gradients["kernel"].reshape(weight.packed_shape))


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


UNIT_SHAPES = {
    "3 x 3": (Conv2D(33, 3, padding="same"), (7, 6, 17)),
    "of stride 2": (Conv2D(20, 3, 2, "same"), (7, 6, 35)),
    "larger stride than kernel": (Conv2D(16, 1, 2), (5, 6, 16)),
    "dilated": (Conv2D(16, (3, 2), 1, ((2, 1), (0, 3)), (2, 3)), (6, 7, 20)),
    "few channels": (Conv2D(20, (3, 5), (2, 1), "same"), (5, 7, 3)),
    "pointwise": (Conv2D(150, 1), (9, 8, 40)),
    "dense": (Dense(10), (100,)),
}
EMULATED = (("of stride 2", "bf16"), ("few channels", "tf32"))  # by plain code, on devices without units: it takes long


def numbers_of(bench: Workbench, kind: str) -> Floats:
    return TF32(bench) if kind == "tf32" else Halves(bench, kind)


@pytest.mark.parametrize("name", UNIT_SHAPES)
@pytest.mark.parametrize("kind", ("bf16", "fp16", "tf32"))
def test_matrix_units(bench, rng, name, kind):
    numbers = numbers_of(bench, kind)
    bench.traits, bench.compute = Traits(gpu=True, compute_units=2, find_units=bench.traits.find_units), Compute(kind)
    has_unit = bool(bench.traits.unit(kind))
    if not has_unit and (name, kind) not in EMULATED:
        pytest.skip("no matrix units")
    op, shape = UNIT_SHAPES[name]
    check_linear(op, bench, rng, shape, numbers=numbers, choices="pairs" if has_unit else "")


@pytest.mark.parametrize(("name", "kind"), EMULATED)
def test_warpgroups_share_rows(bench, rng, name, kind):
    """By plain code, with tiles of several warpgroups."""
    numbers = numbers_of(bench, kind)
    bench.traits = Traits(gpu=True, compute_units=2, find_units=lambda: ("PLAIN_WGMMA",))
    bench.compute, bench.turn = Compute(kind), 1
    op, shape = UNIT_SHAPES[name]
    check_linear(op, bench, rng, shape, numbers=numbers)


SQUARES = [
    (Conv2D(9, 7, 2, ((3, 3), (3, 3)), use_bias=False), (10, 12, 3)),
    (Conv2D(9, 7, 2, "same"), (9, 11, 3)),
    (Conv2D(17, 3, 2, "same"), (8, 6, 1)),
    (Conv2D(17, (3, 2), 2), (9, 8, 4)),
    (Conv2D(3, 3, 2, ((1, 0), (0, 1))), (6, 7, 2)),
    (Conv2D(3, (1, 5), 2, ((0, 0), (4, 3))), (5, 4, 3)),
]


def by_squares(x: np.ndarray) -> np.ndarray:
    images, height, width, channels = x.shape
    even = np.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    split = even.reshape(images, -(-height // 2), 2, -(-width // 2), 2, channels)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(images, -(-height // 2), -(-width // 2), 4 * channels)


@AS_GPUS_TOO
@pytest.mark.parametrize(("op", "shape"), SQUARES, ids=str)
def test_convolutions_over_squares(bench, rng, op, shape):
    """Exactly the same products; and launches that move input, kernel and gradient."""
    squares = BySquares.of(op, shape)
    kernel = rng.standard_normal(op.kernel(shape).packed_shape).astype(np.float32)
    x = rng.standard_normal((2, *shape)).astype(np.float32)
    tx, tkernel = bench.put(x, shape[-1]), bench.put(kernel)
    ty, halves = squares.emit_input(bench, tx, "float32"), squares.emit_input(bench, tx, "bfloat16")
    over_squares = squares.emit_kernel(bench, tkernel)
    total = bench.put(rng.standard_normal(over_squares.shape))
    gradient = bench.empty(kernel.shape)
    squares.emit_gradient(bench, total, gradient)
    bench.run()
    found, moved = bench.get(ty), bench.get(over_squares)
    assert np.array_equal(found, by_squares(x))
    assert np.array_equal(bench.get(halves), unpack(BFloat16().encode(pack(found)), found.shape))
    assert not np.setdiff1d(kernel, moved).size and np.count_nonzero(moved) == kernel.size
    y = op.product(np.float64(x), np.float64(kernel))
    assert np.abs(squares.op.product(np.float64(found), np.float64(moved)) - y).max() < 1e-12
    assert squares.op.output_shape(squares.shape) == op.output_shape(shape)
    dy = np.float64(rng.standard_normal(y.shape))
    _, expected = op.slopes(np.float64(x), np.float64(kernel), dy)
    _, slopes = squares.op.slopes(np.float64(found), np.float64(moved), dy)
    rows = np.array(squares.rows)
    places = np.argsort(rows)[(rows < 0).sum() :]  # of the kernel's rows

    def of_pixels(gradients: np.ndarray) -> np.ndarray:
        return gradients.reshape(len(rows), -1)[places].reshape(kernel.shape)

    assert np.abs(of_pixels(slopes) - expected).max() < 1e-12
    assert np.array_equal(bench.get(gradient), of_pixels(bench.get(total)))


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Conv2D(8, 3, 1, "same"), (8, 8, 3)),
        (Conv2D(8, 3, 2, "same"), (8, 8, 5)),
        (Conv2D(8, 1, 2), (8, 8, 3)),
        (Conv2D(8, 2, 2, "valid", 1, 2), (8, 8, 2)),
        (Conv2D(8, 3, 2, ((0, 0), (0, 0)), 2), (8, 8, 3)),
        (Conv2D(8, (3, 2), 2), (9, 9, 3)),  # the last column is read by none
        (DepthwiseConv2D(3, 2), (8, 8, 3)),
    ],
    ids=str,
)
def test_other_convolutions_read_pixels(op, shape):
    assert BySquares.of(op, shape) is None
