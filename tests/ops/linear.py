"""The checks that all linear ops share."""

from __future__ import annotations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import Conv2D, Epilogue, LinearOp, Target, finish
from edgelearn.ops.formats import emit_prepared
from edgelearn.ops.tensor import RELU, RELU6
from edgelearn.runtime import Kernels

from .harness import KernelConfig, Workbench, close, every_choice


def check_linear(op: LinearOp, bench: Workbench, rng: np.random.Generator, shape, n: int = 2, block: int = 16) -> None:
    """Forward with epilogue, backward to data (masked, and added to another share) and to weights, against float64."""
    x = rng.standard_normal((n, *shape))
    kernel_weight = op.weights(shape)["kernel"]
    kernel = rng.standard_normal(kernel_weight.shape)
    out_shape = op.output_shape(shape)
    channels = out_shape[-1:]
    scale, shift = rng.uniform(0.5, 2.0, channels), rng.standard_normal(channels)
    bias_free = type(op)(**{**op.__dict__, "use_bias": False})
    y = bias_free.reference_forward([x], {"kernel": kernel})

    tx, tk = bench.put(x, block), bench.put(kernel.reshape(kernel_weight.packed_shape))
    ts, tt, ty = bench.put(scale), bench.put(shift), bench.empty((n, *out_shape))
    op.emit_linear(bench, tx, tk, ty, Epilogue(ts, tt, RELU6))
    bench.run()
    close(bench.get(ty), np.clip(y * scale + shift, 0, 6))
    op.emit_linear(bench, tx, tk, ty, Epilogue(None, tt, RELU))
    bench.run()
    close(bench.get(ty), np.maximum(y + shift, 0))
    op.emit_linear(bench, tx, tk, ty, Epilogue())
    bench.run()
    close(bench.get(ty), y)

    dy = rng.standard_normal((n, *out_shape))
    (dx,), gradients = bias_free.reference_backward([x], {"kernel": kernel}, dy * scale)
    tdy = bench.put(dy)
    if block == 16:
        tdx = bench.empty(x.shape)
        prepared = emit_prepared(bench, op.backward_view(bench, tx, tk, ts))
        op.emit_backward_data(bench, tx, prepared, tdy, Target(tdx))
        bench.run()
        close(bench.get(tdx), dx)
        op.emit_backward_data(bench, tx, prepared, tdy, Target(tdx, tx, RELU6, accumulate=True))
        bench.run()
        close(bench.get(tdx), dx + dx * ((x > 0) & (x < 6)))

    (_,), gradients = bias_free.reference_backward([x], {"kernel": kernel}, dy)
    packed = gradients["kernel"].reshape(kernel_weight.packed_shape)
    tg = bench.empty(kernel_weight.packed_shape)
    tsums = bench.empty(channels)
    for add in (False, True):
        for found in op.emit_backward_weights(bench, tx, tdy, tg, tsums, add):
            finish.emit_sum(bench, found)
        bench.run()
        close(bench.get(tg), packed * (1 + add))
        close(bench.get(tsums), dy.sum(tuple(range(dy.ndim - 1))) * (1 + add))


def check_every_choice(
    op: LinearOp, bench: Workbench, rng: np.random.Generator, shape, n: int = 2, block: int = 16, pairs: bool = True
) -> dict[str, list[KernelConfig]]:
    """The most that a launch can be asked (scale, shift and activation; a mask and another share) against float64,
    with each candidate of each decision, or without `pairs` each value of each size. Returns what was tried."""
    op = type(op)(**{**op.__dict__, "use_bias": False})
    x = rng.standard_normal((n, *shape))
    weight = op.weights(shape)["kernel"]
    kernel = rng.standard_normal(weight.shape)
    y = op.reference_forward([x], {"kernel": kernel})
    scale, shift = rng.uniform(0.5, 2.0, y.shape[-1:]), rng.standard_normal(y.shape[-1:])
    dy, share = rng.standard_normal(y.shape), rng.standard_normal(x.shape)
    (dx,), _ = op.reference_backward([x], {"kernel": kernel}, dy * scale)
    _, gradients = op.reference_backward([x], {"kernel": kernel}, dy)
    packed = gradients["kernel"].reshape(weight.packed_shape)
    tx, tk, tdy = bench.put(x, block), bench.put(kernel.reshape(weight.packed_shape)), bench.put(dy)
    ts, tt = bench.put(scale), bench.put(shift)

    def check() -> None:
        ty, tg, tsums = bench.empty(y.shape), bench.empty(weight.packed_shape), bench.empty(y.shape[-1:])
        op.emit_linear(bench, tx, tk, ty, Epilogue(ts, tt, RELU6))
        for found in op.emit_backward_weights(bench, tx, tdy, tg, tsums, add=False):
            finish.emit_sum(bench, found)
        if block == 16:
            tdx = bench.put(share)
            prepared = emit_prepared(bench, op.backward_view(bench, tx, tk, ts))
            op.emit_backward_data(bench, tx, prepared, tdy, Target(tdx, tx, RELU6, accumulate=True))
        bench.run()
        close(bench.get(ty), np.clip(y * scale + shift, 0, 6))
        close(bench.get(tg), packed)
        close(bench.get(tsums), dy.sum(tuple(range(dy.ndim - 1))))
        if block == 16:
            close(bench.get(tdx), share + dx * ((x > 0) & (x < 6)))

    return every_choice(bench, check, pairs)


def draw_op(make, shape, data) -> LinearOp:
    """An op with a window that `data` draws: kernel, strides, dilation and padding, different in y and x."""

    def two(low: int, high: int):
        return st.tuples(st.integers(low, high), st.integers(low, high))

    window = {
        "kernel_size": data.draw(two(1, 4)),
        "strides": data.draw(two(1, 3)),
        "dilation_rate": data.draw(two(1, 2)),
        "padding": data.draw(st.sampled_from(("same", "valid")) | st.tuples(two(0, 3), two(0, 3))),
    }
    op = make(**window)
    try:
        op.output_shape(shape)
    except ShapeError:
        assume(False)
    return op


def check_geometry(make, kernels: Kernels, shape, data) -> None:
    """An op with a window that `data` draws."""
    op = draw_op(make, shape, data)
    bench, rng = Workbench(kernels.context, kernels), np.random.default_rng(0)
    x = rng.standard_normal((data.draw(st.integers(1, 3)), *shape))
    weight = op.weights(shape)["kernel"]
    kernel = rng.standard_normal(weight.shape)
    y = op.reference_forward([x], {"kernel": kernel})
    assert y.shape == (len(x), *op.output_shape(shape))
    dy = rng.standard_normal(y.shape)
    (dx,), gradients = op.reference_backward([x], {"kernel": kernel}, dy)

    tx, tk, tdy = bench.put(x), bench.put(kernel.reshape(weight.packed_shape)), bench.put(dy)
    ty, tdx, tg = bench.empty(y.shape), bench.empty(x.shape), bench.empty(weight.packed_shape)
    op.emit_linear(bench, tx, tk, ty, Epilogue())
    op.emit_backward_data(bench, tx, emit_prepared(bench, op.backward_view(bench, tx, tk, None)), tdy, Target(tdx))
    kernel_sum, _ = op.emit_backward_weights(bench, tx, tdy, tg, None, add=False)
    finish.emit_sum(bench, kernel_sum)
    bench.run()
    close(bench.get(ty), y)
    close(bench.get(tdx), dx)
    close(bench.get(tg), gradients["kernel"].reshape(weight.packed_shape))


def check_long_sums(bench, rng, filters: int, images: int) -> None:
    """Weights' gradients of 3 x 3 convolutions keep their digits where all products have one sign, as behind a ReLU:
    rounding errors do not cancel."""
    op = Conv2D(filters, 3, padding="same", use_bias=False)
    x = np.float64(np.float32(rng.uniform(0, 1, (images, 112, 112, filters))))
    _, gradients = op.reference_backward([x], {"kernel": np.zeros((3, 3, filters, filters))}, x)
    tx, tg = bench.put(x), bench.empty((9, filters, filters))
    finish.emit_sum(bench, op.emit_backward_weights(bench, tx, tx, tg, None, add=False)[0])
    bench.run()
    close(bench.get(tg), gradients["kernel"].reshape(9, filters, filters), 1e-5)
