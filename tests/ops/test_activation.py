"""Activations: their definitions, digits near and far from zero, corners, and where they are fused."""

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.ops import ELU, GELU, Activation, Clip, Conv2D, Exp, LeakyReLU, Log, Op, ReLU, Rescaling, Square, Target

from .harness import GPU, SIZES, check_op, close

POSITIVE = (Log(), ops.Reciprocal(), ops.Rsqrt(), ops.Sqrt())
ACTIVATIONS = (
    ops.Abs(), Clip(-2, 3), Clip(1.5), Clip(max_value=-0.5), ELU(), ELU(0.5), Exp(), GELU(), GELU(True),
    ops.HardSigmoid(), ops.HardSigmoid(0.2), ops.HardSwish(), LeakyReLU(), LeakyReLU(0.0), ops.Mish(), ReLU(), ReLU(6),
    ReLU(2.5), Rescaling(0.5, -1), Rescaling(-2), ops.SELU(), ops.Sigmoid(), ops.SiLU(), ops.Softplus(), ops.Softsign(),
    Square(), ops.Tanh(), *POSITIVE,
)  # fmt: skip
FUSED = (Clip(-2, 3), ELU(0.5), LeakyReLU(), ReLU(2.5), ops.SELU(), ops.Softsign(), ops.Tanh())


def run(bench, op: Activation, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The function's values and derivatives as a device computes them, at one size: a program serves all tests."""
    tx, ty, tdx = bench.put(np.resize(x, (40, 20))), bench.empty((40, 20)), bench.empty((40, 20))
    op.emit_forward(bench, [tx], ty)
    op.emit_backward(bench, [tx], ty, bench.put(np.ones((40, 20))), [Target(tdx)])
    bench.run()
    y, dx = (bench.get(tensor).ravel()[: x.size].reshape(x.shape) for tensor in (ty, tdx))
    return y, dx


def test_every_activation_is_here():
    known = {op for op in Op.registry.values() if issubclass(op, Activation) and op.__module__.startswith("edgelearn")}
    assert known - {type(op) for op in ACTIVATIONS} == {Activation}


CASES = [  # op, shape, examples, and the way of `check_op`: masked and added where sizes differ
    *((op, (3, 5, 33), 3, 1) for op in ACTIVATIONS),
    *((op, shape, 2, None) for op in (ReLU(), ops.Sigmoid())
      for shape in (*((3, 5, channels) for channels in SIZES), (100,), (1,))),
    *((op, (33,), rows, None) for op in (ReLU(), ops.SiLU()) for rows in SIZES),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "n", "way"), CASES, ids=str)
def test_against_float64(bench, rng, op, shape, n, way):
    check_op(op, bench, rng, shape, n=n, low=0.1 if op in POSITIVE else -3, way=way)


@pytest.mark.parametrize("op", [ReLU(6), ops.SiLU()], ids=str)
def test_against_float64_as_gpus_do(bench, rng, op):
    bench.traits = GPU
    check_op(op, bench, rng, (9, 7, 33))


@pytest.mark.parametrize("op", ACTIVATIONS, ids=str)
def test_derivatives_are_those_of_the_values(op):
    x = np.linspace(0.2, 9.1, 50) if op in POSITIVE else np.linspace(-8.03, 8.02, 173)
    slope = (op.value(x + 1e-6) - op.value(x - 1e-6)) / 2e-6
    assert op.derivative(x) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("op", ACTIVATIONS, ids=str)
def test_relative_accuracy(bench, op):
    """To a few units in the last place of float32, near 0 too."""
    sizes = np.geomspace(1e-6, 20, 400, dtype=np.float32)
    x = (sizes if op in POSITIVE else np.concatenate([-sizes, sizes])).astype(np.float64).reshape(-1, 20)
    corners = np.float32([0, 1.5, -0.5, 3, -3, 6, 2.5, -2, 2])
    x = np.where(np.abs(x[..., None] - corners).min(-1) < 1e-5, x + 1e-4, x)
    y, dx = run(bench, op, x)
    assert y == pytest.approx(op.value(np.float32(x).astype(np.float64)), rel=4e-6, abs=1e-9)
    assert dx == pytest.approx(op.derivative(np.float32(x).astype(np.float64)) * np.ones_like(x), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("op", [op for op in ACTIVATIONS if op not in (*POSITIVE, Exp(), Square())], ids=str)
def test_far_from_zero(bench, op):
    """Where an exponential is too large or too small for float32."""
    x = np.float64(np.float32([[-1e38, -200.0, -90.0, -87.1, -86.9, -20.0, 86.9, 87.1, 90.0, 200.0, 1e38]]))
    y, dx = run(bench, op, x)
    assert y == pytest.approx(op.value(x), rel=1e-5, abs=1e-30)
    assert dx == pytest.approx(op.derivative(x) * np.ones_like(x), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        (Exp(), [-np.inf, -200.0, 0.0, 88.0, 89.0, np.inf, np.nan], [0, 0, 1, np.exp(88), np.inf, np.inf, np.nan]),
        (Log(), [0.0, 1.0, 3e38, np.inf, -1.0, np.nan], [-np.inf, 0, np.log(3e38), np.inf, np.nan, np.nan]),
    ],
)
def test_infinities(bench, op, x, expected):
    assert run(bench, op, np.array([x]))[0] == pytest.approx(np.array([expected]), rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("op", "x", "derivative"),
    [
        (ReLU(), [0, 3, 6], [0, 1, 1]),
        (ReLU(6), [0, 3, 6], [0, 1, 0]),
        (ReLU(2), [0, 1, 2], [0, 1, 0]),
        (Clip(-1, 2), [-1, 0, 2], [0, 1, 0]),
        (LeakyReLU(0.25), [0, 1, -1], [0.25, 1, 0.25]),
        (ops.HardSwish(), [-3, 0, 3], [0, 0.5, 1]),
        (ops.Abs(), [-1, 0, 1], [-1, 0, 1]),
    ],
)
def test_corners(bench, op, x, derivative):
    _, dx = run(bench, op, np.array([x], np.float64))
    assert dx.tolist() == [pytest.approx(derivative, rel=1e-6)]


@pytest.mark.parametrize("op", ACTIVATIONS, ids=str)
def test_nan_goes_through(bench, op):
    """A NaN that an activation turned into 0 would let training go on with a broken layer."""
    y, _ = run(bench, op, np.array([[np.nan, 1.0, 2.0]]))
    assert np.isnan(y[0]).tolist() == [True, False, False]


@pytest.mark.parametrize("op", (*FUSED, ReLU(), ReLU(6)), ids=str)
def test_as_an_epilogue(bench, rng, op):
    """Fused into the kernel before, and as the mask of the gradient behind it."""
    assert op.fuses_after(Conv2D(3, 1)) and op.fuses_after(ops.BatchNormalization())
    x = np.append(rng.uniform(-4, 4, (1, 20)), [[np.nan]], 1)
    z = bench.empty(x.shape)
    kernel = bench.put(np.zeros((1, 21)))  # what is left is the shift, x itself
    ops.Dense(21).emit_linear(
        bench, bench.put(np.ones((1, 1))), kernel, z, ops.Epilogue(None, bench.put(x), op.epilogue)
    )
    bench.run()
    assert bench.get(z) == pytest.approx(op.value(x), rel=1e-6, nan_ok=True)
    y, dy = op.value(x[:, :20]), rng.standard_normal((1, 20))
    dx = bench.empty(y.shape)
    target = Target(dx, bench.put(y), op.epilogue)
    Rescaling(2.0).emit_backward(bench, [dx], dx, bench.put(dy), [target])
    bench.run()
    close(bench.get(dx), 2 * dy * op.derivative(x[:, :20]), 2e-6)


def test_what_moves_zero_is_not_fused():
    """The padding of channels would not stay zero."""
    for op in (ops.Sigmoid(), ops.HardSigmoid(), ops.Softplus(), Exp(), Clip(1.5), Rescaling(1, 1), ops.SiLU(), GELU()):
        assert not op.fuses_after(Conv2D(3, 1))
