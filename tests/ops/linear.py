"""The check that all linear ops share, in each precision."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from edgelearn.errors import ShapeError
from edgelearn.ops import BFloat16, Compute, Conv2D, Epilogue, Float16, LinearOp, Target, Tensor, finish
from edgelearn.ops.formats import emit_prepared
from edgelearn.ops.target import emit_copy
from edgelearn.ops.tensor import RELU, RELU6
from edgelearn.runtime import Kernels

from .harness import KernelConfig, Workbench, chosen, close, every_choice

FORMATS = {"bf16": (BFloat16(), 2.0**-8), "fp16": (Float16(), 2.0**-11)}  # with the rounding of a value


class Floats:
    """Arrays on a bench in float32."""

    tolerance = 2e-5  # of what is written as it is stored
    scales = True  # epilogues may multiply

    def __init__(self, bench: Workbench) -> None:
        self.bench, self.put, self.empty, self.get = bench, bench.put, bench.empty, bench.get

    def draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    def kernel(self, op: LinearOp, x: Tensor, kernel: np.ndarray) -> Tensor:
        """The kernel as the forward pass reads it."""
        return emit_prepared(self.bench, op.forward_view(self.bench, x, self.bench.put(kernel)))

    def prepared(self, op: LinearOp, x: Tensor, kernel: np.ndarray, scale: Tensor | None) -> Tensor:
        """The kernel as the backward pass to data reads it."""
        return emit_prepared(self.bench, op.backward_view(self.bench, x, self.bench.put(kernel), scale))


class TF32(Floats):
    """Values that TF32 has: their products are as exact as those of floats."""

    scales = False  # a scaled kernel has other values

    def draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return rounded_to_tf32(rng.standard_normal(shape).astype(np.float32))


class Halves(Floats):
    """Arrays in a half-precision format."""

    scales = False

    def __init__(self, bench: Workbench, name: str) -> None:
        self.bench, (self.format, self.tolerance) = bench, FORMATS[name]
        bench.compute = Compute(name, plain=True)

    def put(self, array: np.ndarray, block: int = 16) -> Tensor:
        tensor = self.empty(array.shape)
        emit_copy(self.bench, self.bench.put(array), Target(tensor))
        return tensor

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return self.bench.empty(shape, dtype=self.format.storage)

    def get(self, tensor: Tensor) -> np.ndarray:
        floats = self.bench.empty(tensor.shape)
        emit_copy(self.bench, tensor, Target(floats))
        self.bench.run()
        return self.bench.get(floats)

    def draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return self.format.round(rng.standard_normal(shape).astype(np.float32)).astype(np.float64)

    def kernel(self, op: LinearOp, x: Tensor, kernel: np.ndarray) -> Tensor:
        return self.put(kernel)

    def prepared(self, op: LinearOp, x: Tensor, kernel: np.ndarray, scale: Tensor | None) -> Tensor:
        view = op.view(x, self.bench.put(kernel), None)
        prepared = self.empty(view.shape)
        self.format.emit_encode_weights(self.bench, view, prepared)
        return prepared


def rounded_to_tf32(v: np.ndarray) -> np.ndarray:
    """In float64."""
    return ((v.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64)


def check_linear(
    op: LinearOp, bench: Workbench, rng: np.random.Generator, shape, n: int = 2, block: int = 16,
    numbers: Floats | None = None, choices: str = "", way: int | None = None,
) -> dict[str, list[KernelConfig]]:  # fmt: skip
    """Forward with epilogues, backward to data (masked and added to another share, and as it is) and to weights,
    against float64; with a `way`, one of these epilogues and one of these gradients.

    With `choices`, all that a launch can be asked is tried with each candidate of each decision ("pairs"), or with each
    value of each size ("sizes"). Returns what was tried, by kernel.
    """
    numbers = numbers or Floats(bench)
    op = type(op)(**{**op.__dict__, "use_bias": False})
    weight = op.weights(shape)["kernel"]
    x, kernel = numbers.draw(rng, n, *shape), numbers.draw(rng, *weight.shape)
    y = op.reference_forward([x], {"kernel": kernel})
    assert y.shape == (n, *op.output_shape(shape))
    dy, share = numbers.draw(rng, *y.shape), numbers.draw(rng, *x.shape)
    scale = rng.uniform(0.5, 2.0, y.shape[-1]) if numbers.scales else np.ones(y.shape[-1])
    shift, kernel_matrix = rng.standard_normal(y.shape[-1]), kernel.reshape(weight.packed_shape)
    (dx,), _ = op.reference_backward([x], {"kernel": kernel}, dy * scale)
    _, gradients = op.reference_backward([x], {"kernel": kernel}, dy)
    tx, tdy, ts, tt = numbers.put(x, block), numbers.put(dy), bench.put(scale), bench.put(shift)
    if not numbers.scales:
        ts = None

    epilogues = [(Epilogue(ts, tt, RELU6), np.clip(y * scale + shift, 0, 6))]
    if numbers.scales:
        epilogues += (Epilogue(None, tt, RELU), np.maximum(y + shift, 0)), (Epilogue(), y)

    def forward(epilogue: Epilogue, expected: np.ndarray) -> None:
        ty = numbers.empty(y.shape)
        op.emit_linear(bench, tx, numbers.kernel(op, tx, kernel_matrix), ty, epilogue)
        bench.run()
        close(numbers.get(ty), expected, numbers.tolerance)

    def backward_data(added: bool) -> None:
        tdx = numbers.put(share) if added else numbers.empty(x.shape)
        target = Target(tdx, tx, RELU6, accumulate=True) if added else Target(tdx)
        op.emit_backward_data(bench, tx, numbers.prepared(op, tx, kernel_matrix, ts), tdy, target)
        bench.run()
        close(numbers.get(tdx), share + dx * ((x > 0) & (x < 6)) if added else dx, numbers.tolerance)

    def backward_weights(tg: Tensor, tsums: Tensor, add: bool) -> None:
        for found in op.emit_backward_weights(bench, tx, tdy, tg, tsums, add):
            finish.emit_sum(bench, found)
        bench.run()
        close(bench.get(tg), gradients["kernel"].reshape(weight.packed_shape) * (1 + add))
        close(bench.get(tsums), dy.sum(tuple(range(dy.ndim - 1))) * (1 + add))

    def check(way: int | None = 0) -> None:
        for epilogue in chosen(epilogues, way):
            forward(*epilogue)
        for added in chosen((True, False) if numbers.scales else (True,), way) if block == 16 else ():
            backward_data(added)
        tg, tsums = bench.empty(weight.packed_shape), bench.empty(y.shape[-1:])
        for add in (False, True):
            backward_weights(tg, tsums, add)

    if choices:
        return every_choice(bench, check, choices == "pairs")
    check(way)
    return bench.tried


check_every_choice = partial(check_linear, choices="pairs")


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
    op, n = draw_op(make, shape, data), data.draw(st.integers(1, 3))
    check_linear(op, Workbench(kernels.context, kernels), np.random.default_rng(0), shape, n, way=n)


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
