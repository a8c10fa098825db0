"""Updates of weights against float64: rules, clipping, averages, and what a step that is not finite leaves alone."""

import numpy as np
import pytest

from edgelearn.ops import LAMB, SGD, Adam, AdamW, Lion, RMSprop
from edgelearn.ops.constants import Counter
from edgelearn.ops.emit import GradientSum, Pieces
from edgelearn.ops.finish import emit_finite_check, emit_sum
from edgelearn.ops.optimizers import CHUNK, Clipping, emit_average, emit_proximal

from .harness import AS_GPUS_TOO

RULES = {
    "SGD": SGD(),
    "momentum": SGD(momentum=0.9),
    "Nesterov": SGD(momentum=0.9, nesterov=True),
    "SGD with decay": SGD(weight_decay=0.1),
    "momentum with decay": SGD(momentum=0.5, weight_decay=0.1),
    "Adam": Adam(),
    "Adam, own settings": Adam(beta_1=0.8, beta_2=0.95, epsilon=1e-3),
    "AdamW": AdamW(weight_decay=0.05),
    "RMSprop": RMSprop(),
    "RMSprop with momentum": RMSprop(rho=0.8, momentum=0.9, epsilon=1e-3),
    "RMSprop, centered": RMSprop(momentum=0.5, centered=True, epsilon=1e-2, weight_decay=0.1),
    "Lion": Lion(weight_decay=0.1),
    "LAMB": LAMB(),
    "LAMB, own settings": LAMB(beta_1=0.8, beta_2=0.95, epsilon=1e-3, weight_decay=0.05),
}
RATE = 0.03
SIZE = CHUNK * 16 + 48  # one chunk of a CPU's work-item, and three blocks of the next


class Trainer:
    """Weights, gradients and slots on a device, and the launches of one update."""

    def __init__(self, bench, optimizer, w, decay=True):
        self.bench, self.optimizer, self.step = bench, optimizer, 0
        self.w, self.g = bench.put(w), bench.put(np.zeros_like(w))
        self.slots = [bench.put(np.zeros_like(w)) for _ in optimizer.slots]
        self.decay = decay

    def update(self, g, loss=0.0):
        """One update. Returns how many chunks of gradients, and losses, were not finite."""
        self.step += 1
        control = self.bench.control(
            learning_rate=RATE, correction=self.optimizer.correction(self.step), step=self.step, loss=loss,
            second_correction=self.optimizer.second_correction(self.step),
        )  # fmt: skip
        self.bench.context.write(self.bench.memory[self.g.buffer].handle, np.float32(g))
        emit_sum(self.bench, GradientSum(self.g))
        (flags,) = self.bench.launches[-1].writes
        emit_finite_check(self.bench, flags, control)
        slots = [slot.buffer for slot in self.slots]
        self.optimizer.emit_update(self.bench, self.w.buffer, self.g.buffer, slots, control, self.decay)
        self.bench.run()
        return self.bench.count(control, Counter.NONFINITE)

    def read(self):
        return [self.bench.get(t) for t in (self.w, *self.slots)]


@AS_GPUS_TOO
@pytest.mark.parametrize("decays", (True, False), ids=("a kernel", "a bias"))
@pytest.mark.parametrize("name", RULES)
def test_several_steps(bench, rng, name, decays):
    optimizer = RULES[name]
    w = rng.standard_normal(SIZE)
    trainer, slots = Trainer(bench, optimizer, w, decays), [np.zeros(SIZE) for _ in optimizer.slots]
    for step in range(1, 6):
        g = rng.standard_normal(SIZE)
        trainer.update(g)
        shrunk = w * (1 - RATE * optimizer.weight_decay * decays)
        w, slots = optimizer.reference_update(shrunk, g, slots, RATE, step)
        for actual, expected in zip(trainer.read(), [w, *slots], strict=True):
            assert np.abs(actual - expected).max() < 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.measures])
def test_extremes_of_pieces(bench, rng, name):
    """Extremes of kernels that ask for them include 0. Others are updated all the same; a bad step leaves all."""
    if bench.traits.gpu:
        pytest.skip("Updates on GPUs leave no extremes.")
    w, g = rng.standard_normal(SIZE) + 2.0, rng.standard_normal(SIZE)
    trainer, plain = Trainer(bench, RULES[name], w), Trainer(bench, RULES[name], w)
    plain.update(g)
    stops = (5, 6, 20, SIZE // 16)
    places = (2, -1, 0, -1)
    extremes = bench.empty((4, 16))
    rows = tuple(zip((0, *stops), stops, places, strict=False))
    bench.pieces = Pieces(len(rows), bench.table(rows), (extremes,))
    trainer.update(g)
    trainer.update(np.full(SIZE, np.nan))
    for kept, now in zip(plain.read(), trainer.read(), strict=True):
        assert np.array_equal(kept, now)
    new = trainer.read()[0].reshape(-1, 16)
    for start, stop, place in rows:
        if place >= 0:
            expected = np.minimum(new[start:stop].min(0), 0), np.maximum(new[start:stop].max(0), 0)
            assert np.array_equal(bench.get(extremes)[place : place + 2], expected)


def test_a_rule_of_ones_own_leaves_no_extremes():
    class Own(SGD):
        def emit_update(self, *arguments):
            pass

    assert SGD.measures and not Own.measures and not LAMB.measures


def test_formulas_by_hand():
    """The references themselves: two steps with gradient 1, rate 0.1, from 0."""
    w, g = np.zeros(1), np.ones(1)
    assert SGD().reference_update(w, g, [], 0.1, 1) == (pytest.approx(-0.1), [])
    momentum = SGD(momentum=0.5)
    w1, slots = momentum.reference_update(w, g, [np.zeros(1)], 0.1, 1)
    w2, slots = momentum.reference_update(w1, g, slots, 0.1, 2)
    assert (w1[0], w2[0], slots[0][0]) == pytest.approx((-0.1, -0.25, -0.15))
    ahead = SGD(momentum=0.5, nesterov=True)
    w1, slots = ahead.reference_update(w, g, [np.zeros(1)], 0.1, 1)
    w2, slots = ahead.reference_update(w1, g, slots, 0.1, 2)
    assert (w1[0], w2[0]) == pytest.approx((-0.15, -0.325))
    adam = Adam()  # a constant gradient moves a weight by the rate, whatever its size
    w1, slots = adam.reference_update(w, 5 * g, [np.zeros(1)] * 2, 0.1, 1)
    w2, slots = adam.reference_update(w1, 5 * g, slots, 0.1, 2)
    assert (w1[0], w2[0]) == pytest.approx((-0.1, -0.2), rel=1e-5)


def same(some, others) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(some, others, strict=True))


@AS_GPUS_TOO
@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("place", (0, CHUNK * 16 - 1, CHUNK * 16, SIZE - 1))
def test_a_bad_gradient_changes_nothing(bench, rng, bad, place):
    trainer = Trainer(bench, Adam(), rng.standard_normal(SIZE))
    trainer.update(rng.standard_normal(SIZE))
    before, g = trainer.read(), rng.standard_normal(SIZE)
    g[place] = bad
    assert trainer.update(g) == 1 and same(trainer.read(), before)
    assert trainer.update(rng.standard_normal(SIZE)) == 0, "the next good gradient counts again"
    assert not np.array_equal(before[0], trainer.read()[0])


@pytest.mark.parametrize("name", ("SGD", "momentum", "Nesterov", "AdamW", "RMSprop", "Lion", "LAMB"))
def test_every_rule_looks_at_the_count(bench, rng, name):
    trainer = Trainer(bench, RULES[name], rng.standard_normal(SIZE))
    before = trainer.read()
    trainer.update(np.full(SIZE, np.nan))
    assert same(trainer.read(), before)


@pytest.mark.parametrize("loss", (np.nan, np.inf))
def test_a_bad_loss_changes_nothing(bench, rng, loss):
    trainer = Trainer(bench, SGD(), rng.standard_normal(SIZE))
    before = trainer.read()
    assert trainer.update(rng.standard_normal(SIZE), loss) == 1 and same(trainer.read(), before)


def test_huge_gradients_are_finite(bench):
    """Their sum would overflow; each of them does not."""
    assert Trainer(bench, SGD(), np.zeros(SIZE)).update(np.full(SIZE, 3e38)) == 0


def clip(bench, optimizer, *gradients):
    """The gradients after clipping, and the count of bad ones."""
    control = bench.control()
    tensors = [bench.put(g) for g in gradients]
    clipping = Clipping(optimizer, [t.buffer for t in tensors], tensors[0].buffer, control)
    for tensor in tensors:
        emit_sum(bench, GradientSum(tensor))
    flags = [buffer for launch in bench.launches for buffer in launch.writes]
    factors = clipping.emit_factors(bench)
    flags += [b for launch in bench.launches for b in launch.writes if "norm flags" in b.name]
    emit_finite_check(bench, flags[-1], control)  # a plan has them next to each other
    clipping.emit(bench, factors)
    bench.run()
    return [bench.get(t) for t in tensors], bench.count(control, Counter.NONFINITE)


@pytest.mark.parametrize("size", (1, 16, 33, SIZE))
@pytest.mark.parametrize("limit", (1e-3, 1.0, 1e6))
@pytest.mark.parametrize("norm", ("clipnorm", "global_clipnorm"))
def test_norms_are_clipped(bench, rng, norm, limit, size):
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


def test_values_are_clipped(bench, rng):
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
    average, expected = bench.put(np.full(SIZE, 9.0)), w
    for step, bad in ((1, 0), (2, 0), (3, 0), (4, 1)):  # the last one's gradients aren't finite
        emit_average(
            bench, optimizer, bench.put(w * step).buffer, average.buffer, bench.control(step=step, nonfinite=bad)
        )
        bench.run()
        expected = expected if step == 1 or bad else 0.75 * expected + 0.25 * w * step
        assert np.abs(bench.get(average) - expected).max() <= 1e-6 * np.abs(expected).max()


def test_proximal_term(bench, rng):
    """The gradient of proximal/2 ‖w - w₀‖², w₀ the weights of the first step."""
    optimizer, start, g = SGD(proximal=0.3), rng.standard_normal(SIZE), rng.standard_normal(SIZE)
    reference = bench.put(np.full(SIZE, 9.0))
    for step, moved, bad in ((1, 0.0, 0), (2, 0.5, 0), (3, -2.0, 0), (4, 1.0, 1)):
        weights, gradient, control = bench.put(start + moved), bench.put(g), bench.control(step=step, nonfinite=bad)
        emit_proximal(bench, optimizer, weights.buffer, gradient.buffer, reference.buffer, control)
        bench.run()
        assert np.abs(bench.get(gradient) - (g + 0.3 * moved * (not bad))).max() <= 1e-6 * np.abs(g).max()
        assert np.array_equal(bench.get(reference), start.astype(np.float32))
