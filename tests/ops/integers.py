"""The checks that all ops on integers share: bit for bit what NumPy's int64 and float32 give."""

from __future__ import annotations

from math import prod

import numpy as np

from edgelearn.ops import Epilogue, Format, LinearOp, Target, Tensor, finish
from edgelearn.ops.emit import layer_code
from edgelearn.ops.formats import QuantizedTensor, RangeStatistics
from edgelearn.ops.random import philox
from edgelearn.ops.tensor import RELU, RELU6, ceil_div
from edgelearn.runtime import Kernels

from .harness import Workbench, chosen
from .linear import draw_op

PLAIN, WEIGHTS = Format(), Format(symmetric=True)
FORMATS = {  # of activations, weights and gradients
    "symmetric": (Format(symmetric=True), WEIGHTS, Format(symmetric=True)),
    "6, 5 and 4 bits": (Format(6), Format(5, symmetric=True), Format(4)),
    "a step a channel": (PLAIN, Format(symmetric=True, per_channel=True), PLAIN),
}
LEAST, MOST, CLIPPED, COUNT = range(5, 9)  # fields of a record
F = np.float32


def record_of(bench: Workbench, fmt: Format, low, high) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """A range on the device, and its (scale, zero point)."""
    low, high = F(low), F(high)
    scale, zero = fmt.parameters(low, high)
    fields = np.zeros((16, *np.shape(scale)), F)
    fields[:5] = scale, F(1) / scale, zero, low, high
    return bench.put(fields if fmt.per_channel else fields[None]), scale, zero


class Drawn:
    """Integers drawn at random over the whole of a format, and their twin on the device."""

    def __init__(
        self, bench: Workbench, rng: np.random.Generator, shape, fmt: Format, block: int = 16, matrix=None
    ) -> None:
        reach = rng.uniform(0.5, 2.0, (2, *shape[-1:] * fmt.per_channel))
        record, self.scale, self.zero = record_of(bench, fmt, -reach[0], reach[1])
        self.q = rng.integers(fmt.least, fmt.most, shape, endpoint=True)
        tensor = bench.put(self.q.reshape(matrix or shape), block, "int8", 0 if fmt.per_channel else int(self.zero))
        self.ranged = QuantizedTensor(tensor, record, fmt)

    @property
    def centred(self) -> np.ndarray:
        return self.q - self.zero

    @property
    def values(self) -> np.ndarray:
        return F(self.centred) * self.scale


def result_of(bench: Workbench, shape, fmt: Format, v: np.ndarray, share: float = 0.8):
    """A place for integers, by a range that leaves out some of the values v; the range's scale and zero point."""
    record, scale, zero = record_of(bench, fmt, share * min(v.min(), 0), share * max(v.max(), 0))
    return QuantizedTensor(bench.empty(shape, dtype="int8"), record, fmt, "y"), scale, zero


def check_found(found: np.ndarray, v: np.ndarray, fmt: Format | None, scale=1.0, zero=0) -> None:
    """Records of work-groups against the values that they saw."""
    assert found[:, LEAST].min() == min(v.min(), 0) and found[:, MOST].max() == max(v.max(), 0)
    assert found[:, COUNT].sum() == v.size
    if fmt:
        exact = v * (F(1) / scale)
        beyond = (exact < fmt.least - zero - F(0.5)) | (exact > fmt.most - zero + F(0.5))
        assert found[:, CLIPPED].sum() == beyond.sum()


def exactly(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert (actual == expected).all(), f"{(actual != expected).mean():.1%} of {actual.size} values are not the same"


def transposed(q: np.ndarray) -> np.ndarray:
    """(..., in, out) -> (taps, out, in), as the backward pass to data wants it."""
    return q.reshape(-1, *q.shape[-2:]).swapaxes(1, 2)


def check_integers(
    op: LinearOp, bench: Workbench, rng: np.random.Generator, shape, n: int = 2, block: int = 16,
    formats: tuple[Format, Format, Format] = (PLAIN, WEIGHTS, PLAIN), way: int | None = None,
) -> None:  # fmt: skip
    """Forward, backward to data and to weights. `formats` are those of activations, weights and gradients. `way`: all
    results are integers, if it is even, or floats, not both."""
    of_activations, of_weights, of_gradients = formats
    op = type(op)(**{**op.__dict__, "use_bias": False})
    weight = op.weights(shape)["kernel"]
    x = Drawn(bench, rng, (n, *shape), of_activations, block)
    kernel = Drawn(bench, rng, weight.packed_shape, of_weights)
    sums = op.reference_forward([x.centred], {"kernel": kernel.q.reshape(weight.shape)})
    floats = F(sums) * (kernel.scale * x.scale)
    scale, shift = F(rng.uniform(0.5, 2.0, sums.shape[-1:])), F(rng.standard_normal(sums.shape[-1:]))
    y = np.clip(floats * scale + shift, F(0), F(6))

    ty, y_scale, y_zero = result_of(bench, y.shape, of_activations, y)
    found, found_floats = RangeStatistics(bench.empty((5, 16))), RangeStatistics(bench.empty((3, 16)))
    as_floats = bench.empty(y.shape)
    integers = chosen((True, False), way)
    if True in integers:
        epilogue = Epilogue(bench.put(scale), bench.put(shift), RELU6)
        op.emit_linear(bench, x.ranged, kernel.ranged, Target(ty, statistics=found), epilogue)
        bench.run()
        exactly(bench.get(ty.tensor, y_zero), of_activations.encode(y, y_scale, y_zero))
        check_found(bench.get(found.parts), y, of_activations, y_scale, y_zero)
    if False in integers:
        op.emit_linear(bench, x.ranged, kernel.ranged, Target(as_floats, statistics=found_floats), Epilogue())
        bench.run()
        exactly(bench.get(as_floats), floats)
        check_found(bench.get(found_floats.parts), floats, None)

    dy = Drawn(bench, rng, sums.shape, of_gradients)
    if block == 16:
        check_backward_data(op, bench, rng, x, dy, weight, formats, integers)
    _, gradients = op.reference_backward([x.centred], {"kernel": kernel.q.reshape(weight.shape)}, dy.centred)
    check_backward_weights(op, bench, x, dy, gradients["kernel"].reshape(weight.packed_shape))


def check_backward_data(op, bench: Workbench, rng, x: Drawn, dy: Drawn, weight, formats, integers) -> None:
    """With prepared weights of their own: steps a channel are then those of channels of the input."""
    _, of_weights, of_gradients = formats
    if weight.matrix:  # depthwise: nothing is transposed
        prepared = Drawn(bench, rng, weight.packed_shape, of_weights)
        kernel = prepared.q.reshape(weight.shape)
    else:
        prepared = Drawn(bench, rng, transposed(np.empty(weight.shape)).shape, of_weights)
        kernel = transposed(prepared.q).reshape(weight.shape)
    (sums,), _ = op.reference_backward([x.centred], {"kernel": kernel}, dy.centred)
    values = F(sums) * (prepared.scale * dy.scale)
    masked = np.where((x.values > 0) & (x.values < 6), values, F(0))
    share = F(rng.standard_normal(x.q.shape))

    tdx, scale, zero = result_of(bench, x.q.shape, of_gradients, masked)
    as_floats, found = bench.put(share), RangeStatistics(bench.empty((4, 16)))
    if True in integers:
        target = Target(tdx, x.ranged, RELU6, statistics=found)
        op.emit_backward_data(bench, x.ranged.tensor, prepared.ranged, dy.ranged, target)
        bench.run()
        exactly(bench.get(tdx.tensor, zero), of_gradients.encode(masked, scale, zero))
        check_found(bench.get(found.parts), masked, of_gradients, scale, zero)
    if False in integers:
        target = Target(as_floats, bench.put(x.values), RELU, accumulate=True)
        op.emit_backward_data(bench, x.ranged.tensor, prepared.ranged, dy.ranged, target)
        bench.run()
        exactly(bench.get(as_floats), np.where(x.values > 0, values, F(0)) + share)


def check_backward_weights(op, bench: Workbench, x: Drawn, dy: Drawn, sums: np.ndarray) -> None:
    """Steps of 1: then partial sums, and those of micro-batches, are whole numbers that floats hold exactly."""
    one, fields = F(1), np.zeros((1, 16), F)
    fields[0, :3] = one, one, x.zero
    rx = QuantizedTensor(x.ranged.tensor, bench.put(fields), x.ranged.format)
    fields[0, 2] = dy.zero
    rdy = QuantizedTensor(dy.ranged.tensor, bench.put(fields), dy.ranged.format)
    gradient, total = bench.empty(sums.shape), bench.empty(dy.q.shape[-1:])
    assert 2 * np.abs(sums).max() < 1 << 24
    for turn in (1, 2):
        for found in op.emit_backward_weights(bench, rx, rdy, gradient, total, add=turn > 1):
            finish.emit_sum(bench, found)
        bench.run()
        exactly(bench.get(gradient), F(sums * turn))
        exactly(bench.get(total), F(dy.centred.sum(tuple(range(dy.q.ndim - 1))) * turn))


def check_geometry(make, kernels: Kernels, shape, data) -> None:
    """An op with a window that `data` draws."""
    op = draw_op(make, shape, data)
    check_integers(op, Workbench(kernels.context, kernels), np.random.default_rng(0), shape, way=sum(shape))


def check_stochastic(op: LinearOp, bench: Workbench, rng: np.random.Generator, shape) -> None:
    """Numbers are drawn by seed, tensor, step, example and place: the same in micro-batches of any size."""
    fmt, seed, step, n = Format(rounding="stochastic"), (7 << 32) + 5, 3, 3
    weight = op.weights(shape)["kernel"]
    x, kernel = Drawn(bench, rng, (n, *shape), PLAIN), Drawn(bench, rng, weight.packed_shape, WEIGHTS)
    y = op.reference_forward([x.centred], {"kernel": kernel.q.reshape(weight.shape)})
    y = F(y) * (kernel.scale * x.scale)
    uniform = draw(y.shape, "y", seed, step)
    for first, count in ((0, 3), (0, 1), (1, 2)):
        bench.training = bench.control(seed=seed, step=step, seen=first)
        part = x.q[first : first + count]
        tx = QuantizedTensor(bench.put(part, 16, "int8", int(x.zero)), x.ranged.record, PLAIN)
        record, scale, zero = record_of(bench, fmt, y.min(), y.max())
        ty = QuantizedTensor(bench.empty((count, *y.shape[1:]), dtype="int8"), record, fmt, "y")
        op.emit_linear(bench, tx, kernel.ranged, Target(ty), Epilogue())
        bench.run()
        drawn = slice(first, first + count)
        exactly(bench.get(ty.tensor, zero), fmt.encode(y[drawn], scale, zero, uniform[drawn]))


def draw(shape, name: str, seed: int, step: int) -> np.ndarray:
    """The numbers of (0, 1) that decide how the values of a tensor are rounded."""
    words = ceil_div(shape[-1], 16) * 16
    counter = np.zeros((shape[0], prod(shape[1:-1]) * words // 8, 4), np.uint32)
    counter[..., 0] = np.arange(counter.shape[1])
    counter[..., 1] = np.arange(shape[0])[:, None]
    counter[..., 2:] = layer_code(name), step
    drawn = philox(counter, seed, 7)
    halves = np.stack([drawn & 0xFFFF, drawn >> 16], -1).reshape(*shape[:-1], words)
    return F((halves[..., : shape[-1]] + 0.5) / 2**16)
