"""Matrix units, or plain code in their place where a device has none: against float64 from the same rounded values."""

import numpy as np
import pytest

from edgelearn.ops import Compute, Conv2D, Dense, Epilogue, Target, Traits, finish
from edgelearn.ops.formats import emit_prepared
from edgelearn.ops.tensor import RELU6

from .harness import Workbench, close, every_choice
from .test_compute import Halves, check_linear_halves, rounded

SHAPES = {
    "3 x 3": (Conv2D(33, 3, padding="same", use_bias=False), (7, 6, 17)),
    "of stride 2": (Conv2D(20, 3, 2, "same", use_bias=False), (7, 6, 35)),
    "larger stride than kernel": (Conv2D(16, 1, 2, use_bias=False), (5, 6, 16)),
    "dilated": (Conv2D(16, (3, 2), 1, ((2, 1), (0, 3)), (2, 3), use_bias=False), (6, 7, 20)),
    "few channels": (Conv2D(20, (3, 5), (2, 1), "same", use_bias=False), (5, 7, 3)),
    "pointwise": (Conv2D(150, 1, use_bias=False), (9, 8, 40)),
    "dense": (Dense(10, use_bias=False), (100,)),
}
EMULATED = ("of stride 2", "few channels")  # by plain code, on devices without units


def has(bench: Workbench, kind: str) -> bool:
    """Give the bench a GPU's traits and the compute type. True if the device has a unit; emulating one takes long."""
    bench.traits = Traits(gpu=True, compute_units=2, find_units=bench.traits.find_units)
    bench.compute = Compute(kind)
    return bool(bench.traits.unit(kind))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ("bf16", "fp16"))
def test_halves(bench, rng, name, kind):
    halves = Halves(bench, kind)
    if not has(bench, kind) and (kind != "bf16" or name not in EMULATED):
        pytest.skip("no matrix units")
    op, shape = SHAPES[name]
    if not bench.traits.unit(kind):
        check_linear_halves(halves, rng, op, shape)
        return
    every_choice(bench, lambda: check_linear_halves(halves, rng, op, shape))


@pytest.mark.parametrize("name", EMULATED)
def test_warpgroups(bench, rng, name):
    """How they share rows, by plain code."""
    halves = Halves(bench, "bf16")
    emulate_warpgroups(bench, "bf16")
    op, shape = SHAPES[name]
    check_linear_halves(halves, rng, op, shape)


def emulate_warpgroups(bench: Workbench, kind: str) -> None:
    bench.traits = Traits(gpu=True, compute_units=2, find_units=lambda: ("PLAIN_WGMMA",))
    bench.compute = Compute(kind)
    bench.turn = 1  # tiles of several warpgroups


@pytest.mark.parametrize("name", EMULATED)
def test_tf32_by_warpgroups(bench, rng, name):
    """How they share rows, by plain code."""
    emulate_warpgroups(bench, "tf32")
    check_tf32(bench, rng, *SHAPES[name])


@pytest.mark.parametrize("name", SHAPES)
def test_tf32(bench, rng, name):
    if not has(bench, "tf32") and name not in EMULATED:
        pytest.skip("no matrix units")
    check_tf32(bench, rng, *SHAPES[name])


def check_tf32(bench: Workbench, rng: np.random.Generator, op, shape) -> None:
    """From values that TF32 has: products are as exact as those of floats."""
    weight = op.weights(shape)["kernel"]
    x, kernel = (rounded(rng.standard_normal(s).astype(np.float32)) for s in ((2, *shape), weight.shape))
    y = op.reference_forward([x], {"kernel": kernel})
    dy, shift = rounded(rng.standard_normal(y.shape).astype(np.float32)), rng.standard_normal(y.shape[-1:])
    (dx,), gradients = op.reference_backward([x], {"kernel": kernel}, dy)
    tx, tk, ts, tdy = (bench.put(v) for v in (x, kernel.reshape(weight.packed_shape), shift, dy))
    ty, tdx, tg, tsums = (bench.empty(shape) for shape in (y.shape, x.shape, weight.packed_shape, y.shape[-1:]))

    epilogue = Epilogue(None, ts, RELU6)

    def check() -> None:
        op.emit_linear(bench, tx, emit_prepared(bench, op.forward_view(bench, tx, tk)), ty, epilogue)
        op.emit_backward_data(bench, tx, emit_prepared(bench, op.backward_view(bench, tx, tk, None)), tdy, Target(tdx))
        for found in op.emit_backward_weights(bench, tx, tdy, tg, tsums, False):
            finish.emit_sum(bench, found)
        bench.run()
        close(bench.get(ty), np.clip(y + shift, 0, 6))
        close(bench.get(tdx), dx)
        close(bench.get(tg), gradients["kernel"].reshape(weight.packed_shape))
        close(bench.get(tsums), dy.sum(tuple(range(dy.ndim - 1))))

    if bench.traits.unit("tf32"):
        every_choice(bench, check)
    else:
        check()
