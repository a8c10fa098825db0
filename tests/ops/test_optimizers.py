import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import LAMB, SGD, Adam, AdamW, Lion, RMSprop
from edgelearn.ops.constants import Counter, Scalar
from edgelearn.ops.emit import Control, Pieces, Sum
from edgelearn.ops.finish import emit_finite_check, emit_sum
from edgelearn.ops.optimizers import CHUNK

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
        self.control = Control(bench.put(np.zeros((1, 16))), bench.put(np.zeros((1, 16))), None)
        self.decay = decay

    def update(self, g):
        self.step += 1
        scalars = np.zeros(16, np.float32)
        corrections = self.optimizer.correction(self.step), self.optimizer.second_correction(self.step)
        scalars[[Scalar.LEARNING_RATE, Scalar.CORRECTION, Scalar.SECOND_CORRECTION]] = RATE, *corrections
        scalars.view(np.uint32)[Scalar.STEP] = self.step
        context, memory = self.bench.context, self.bench.memory
        context.write(memory[self.control.scalars.buffer].handle, scalars)
        context.write(memory[self.g.buffer].handle, np.float32(g))
        emit_sum(self.bench, Sum(self.g))
        (flags,) = self.bench.launches[-1].writes
        emit_finite_check(self.bench, flags, self.control)
        slots = [slot.buffer for slot in self.slots]
        self.optimizer.emit_update(self.bench, self.w.buffer, self.g.buffer, slots, self.control, self.decay)
        self.bench.run()

    def read(self):
        return [self.bench.get(t) for t in (self.w, *self.slots)]


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


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("place", (0, CHUNK * 16 - 1, CHUNK * 16, SIZE - 1))
def test_a_bad_gradient_changes_nothing(bench, rng, bad, place):
    trainer = Trainer(bench, Adam(), rng.standard_normal(SIZE))
    trainer.update(rng.standard_normal(SIZE))
    before = trainer.read()
    g = rng.standard_normal(SIZE)
    g[place] = bad
    trainer.update(g)
    assert bench.get(trainer.control.counters)[0, Counter.NONFINITE] == 1
    for kept, now in zip(before, trainer.read(), strict=True):
        assert np.array_equal(kept, now)
    trainer.update(rng.standard_normal(SIZE))
    assert bench.get(trainer.control.counters)[0, Counter.NONFINITE] == 0, "the next good gradient counts again"
    assert not np.array_equal(before[0], trainer.read()[0])


@pytest.mark.parametrize("name", ("SGD", "momentum", "Nesterov", "AdamW", "RMSprop", "Lion", "LAMB"))
def test_every_rule_looks_at_the_count(bench, rng, name):
    trainer = Trainer(bench, RULES[name], rng.standard_normal(SIZE))
    before = trainer.read()
    trainer.update(np.full(SIZE, np.nan))
    assert all(np.array_equal(a, b) for a, b in zip(before, trainer.read(), strict=True))


@pytest.mark.parametrize("loss", (np.nan, np.inf))
def test_a_bad_loss_changes_nothing(bench, rng, loss):
    trainer = Trainer(bench, SGD(), rng.standard_normal(SIZE))
    before, counters = trainer.read(), np.zeros(16, np.float32)
    counters[Counter.LOSS] = loss
    bench.context.write(bench.memory[trainer.control.counters.buffer].handle, counters)
    trainer.update(rng.standard_normal(SIZE))
    assert bench.get(trainer.control.counters)[0, Counter.NONFINITE] == 1
    assert np.array_equal(before[0], trainer.read()[0])


def test_huge_gradients_are_finite(bench):
    """Their sum would overflow; each of them does not."""
    trainer = Trainer(bench, SGD(), np.zeros(SIZE))
    trainer.update(np.full(SIZE, 3e38))
    assert bench.get(trainer.control.counters)[0, Counter.NONFINITE] == 0


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: SGD(momentum=1.0), r"momentum.*1\.0"),
        (lambda: SGD(momentum=float("nan")), "momentum.*nan"),
        (lambda: SGD(nesterov=True), "nesterov"),
        (lambda: SGD(weight_decay=-0.1), "weight_decay.*-0.1"),
        (lambda: AdamW(weight_decay=float("inf")), "weight_decay"),
        (lambda: Adam(beta_1=1.0), "beta_1"),
        (lambda: Adam(beta_2=-0.1), "beta_2"),
        (lambda: Adam(epsilon=0.0), "epsilon"),
    ],
)
def test_settings_that_cannot_be(make, problem):
    with pytest.raises(PlanError, match=problem):
        make()
