import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import SGD, Adam
from edgelearn.ops.constants import Counter, Scalar
from edgelearn.ops.emit import Control, Sum
from edgelearn.ops.finish import emit_finite_check, emit_sum
from edgelearn.ops.optimizers import CHUNK, Clipping, emit_average, emit_proximal

SIZE = CHUNK * 16 + 48


def control_of(bench):
    return Control(bench.put(np.zeros((1, 16))), bench.put(np.zeros((1, 16))), None)


def clip(bench, optimizer, *gradients):
    """The gradients after clipping, and the count of bad ones."""
    control = control_of(bench)
    tensors = [bench.put(g) for g in gradients]
    clipping = Clipping(optimizer, [t.buffer for t in tensors], tensors[0].buffer, control)
    for tensor in tensors:
        emit_sum(bench, Sum(tensor))
    flags = [buffer for launch in bench.launches for buffer in launch.writes]
    factors = clipping.emit_factors(bench)
    flags += [b for launch in bench.launches for b in launch.writes if "norm flags" in b.name]
    emit_finite_check(bench, flags[-1], control)  # a plan has them next to each other
    clipping.emit(bench, factors)
    bench.run()
    return [bench.get(t) for t in tensors], bench.get(control.counters)[0, Counter.NONFINITE]


@pytest.mark.parametrize("size", (1, 16, 33, SIZE))
@pytest.mark.parametrize("limit", (1e-3, 1.0, 1e6))
@pytest.mark.parametrize("norm", ("clipnorm", "global_clipnorm"))
def test_norms(bench, rng, norm, limit, size):
    g = rng.standard_normal(size)
    (clipped,), bad = clip(bench, SGD(**{norm: limit}), g)
    expected = g * min(1, limit / np.linalg.norm(g))
    assert np.abs(clipped - expected).max() <= 2e-6 * np.abs(expected).max()
    assert bad == 0
    if limit > np.linalg.norm(g):
        assert np.array_equal(clipped, g.astype(np.float32)), "below the limit the bits stay"


def test_each_tensor_has_its_own_norm(bench, rng):
    gradients = rng.standard_normal(40), 1e-3 * rng.standard_normal(SIZE), np.zeros(7)
    clipped, bad = clip(bench, SGD(clipnorm=0.5), *gradients)
    for actual, g in zip(clipped, gradients, strict=True):
        expected = g * min(1, 0.5 / max(np.linalg.norm(g), 1e-30))
        assert np.abs(actual - expected).max() <= 2e-6 * np.abs(g).max()
    assert bad == 0


def test_values(bench, rng):
    g = rng.standard_normal(SIZE)
    (clipped,), _ = clip(bench, SGD(clipvalue=0.5), g)
    assert np.array_equal(clipped, np.clip(g.astype(np.float32), -0.5, 0.5))


@pytest.mark.parametrize("value", (np.nan, np.inf, 1e30))
def test_a_norm_that_is_not_finite_withholds_the_step(bench, rng, value):
    """1e30 is finite, but not its square."""
    g = rng.standard_normal(SIZE).astype(np.float32)
    g[5] = value
    (left,), bad = clip(bench, SGD(global_clipnorm=1.0), g)
    assert bad > 0
    assert np.array_equal(left, g, equal_nan=True)


def test_moving_average(bench, rng):
    optimizer, w = Adam(use_ema=True, ema_momentum=0.75), rng.standard_normal(SIZE)
    average, control, expected = bench.put(np.full(SIZE, 9.0)), control_of(bench), None
    for step in (1, 2, 3):
        scalars = np.zeros(16, np.uint32)
        scalars[Scalar.STEP] = step
        bench.context.write(bench.memory[control.scalars.buffer].handle, scalars)
        weights = bench.put(w * step)
        emit_average(bench, optimizer, weights.buffer, average.buffer, control)
        bench.run()
        expected = w if step == 1 else 0.75 * expected + 0.25 * w * step
        assert np.abs(bench.get(average) - expected).max() <= 1e-6 * np.abs(expected).max()
    counters = np.zeros(16, np.float32)
    counters[Counter.NONFINITE] = 1
    bench.context.write(bench.memory[control.counters.buffer].handle, counters)
    before = bench.get(average)
    emit_average(bench, optimizer, bench.put(w).buffer, average.buffer, control)
    bench.run()
    assert np.array_equal(bench.get(average), before)


def test_proximal_term(bench, rng):
    """The gradient of proximal/2 ‖w - w₀‖², w₀ the weights of the first step."""
    optimizer, start, g = SGD(proximal=0.3), rng.standard_normal(SIZE), rng.standard_normal(SIZE)
    reference, control = bench.put(np.full(SIZE, 9.0)), control_of(bench)
    for step, moved in ((1, 0.0), (2, 0.5), (3, -2.0)):
        scalars = np.zeros(16, np.uint32)
        scalars[Scalar.STEP] = step
        bench.context.write(bench.memory[control.scalars.buffer].handle, scalars)
        weights, gradient = bench.put(start + moved), bench.put(g)
        emit_proximal(bench, optimizer, weights.buffer, gradient.buffer, reference.buffer, control)
        bench.run()
        assert np.abs(bench.get(gradient) - (g + 0.3 * moved)).max() <= 1e-6 * np.abs(g).max()
        assert np.array_equal(bench.get(reference), start.astype(np.float32))
    counters = np.zeros(16, np.float32)
    counters[Counter.NONFINITE] = 1
    bench.context.write(bench.memory[control.counters.buffer].handle, counters)
    emit_proximal(bench, optimizer, bench.put(start).buffer, gradient.buffer, reference.buffer, control)
    before = bench.get(gradient)
    bench.run()
    assert np.array_equal(bench.get(gradient), before)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"proximal": -1}, "proximal"),
        ({"clipnorm": 0}, "clipnorm"),
        ({"global_clipnorm": -1}, "global_clipnorm"),
        ({"global_clipnorm": "1"}, "global_clipnorm"),
        ({"clipvalue": float("nan")}, "clipvalue"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "clipnorm or clipvalue"),
        ({"ema_momentum": 1.0}, "ema_momentum"),
        ({"learning_rate": "0.1"}, "learning_rate"),
        ({"learning_rate": 1j}, "learning_rate"),
    ],
)
def test_settings_that_cannot_be(settings, problem):
    with pytest.raises(PlanError, match=problem):
        SGD(**settings)
