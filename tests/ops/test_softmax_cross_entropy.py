import numpy as np
import pytest

from edgelearn.ops import LogSoftmax, Softmax, SoftmaxCrossEntropy, Target
from edgelearn.ops.constants import Counter
from edgelearn.ops.loss import emit_count

from .harness import SIZES, close
from .losses import check_loss, make_control
from .plain import check_plain


def check(bench, logits, labels, smoothing=0.0, tolerance=2e-5):
    n = len(labels)
    control, tx = make_control(bench, labels, 1 / n), bench.put(logits)
    tdx = bench.empty(logits.shape)
    emit_count(bench, [SoftmaxCrossEntropy(smoothing).emit(bench, tx, control, tdx)], control, n)
    bench.run()
    losses, gradient = SoftmaxCrossEntropy(smoothing).reference(logits, labels)
    counters = bench.get(control.counters)[0]
    assert counters[Counter.LOSS] == pytest.approx(losses.sum(), rel=2e-5, abs=1e-5 * n)
    assert counters[Counter.CORRECT] == (logits.argmax(-1) == labels).sum()
    assert counters[Counter.SEEN] == n
    assert np.abs(bench.get(tdx) - gradient).max() <= tolerance / n
    ty = bench.empty(logits.shape)
    Softmax().emit_forward(bench, [tx], ty)
    bench.run()
    close(bench.get(ty), Softmax().reference_forward([logits], {}))


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("smoothing", (0.0, 0.1))
def test_classes(bench, rng, classes, smoothing):
    check(bench, rng.standard_normal((9, classes)) * 3, rng.integers(0, classes, 9), smoothing)


@pytest.mark.parametrize("n", SIZES)
def test_examples(bench, rng, n):
    check(bench, rng.standard_normal((n, 5)), rng.integers(0, 5, n))


@pytest.mark.parametrize("level", (-1e4, 1e4))
def test_large_logits(bench, rng, level):
    """exp(1e4) is infinite: the largest logit must be taken off first. float32 keeps 1e4 to 1e-3."""
    logits = np.float32(level + rng.standard_normal((6, 20)) * 30).astype(np.float64)
    check(bench, logits, rng.integers(0, 20, 6), 0.1)


def test_a_certain_wrong_answer_has_a_finite_loss(bench):
    check(bench, np.array([[300.0, -300.0, 0.0]]), np.array([1]))


def test_gradient_of_reference(rng):
    """The reference itself, against differences."""
    logits, labels, step = rng.standard_normal((3, 4)), np.array([0, 3, 1]), 1e-6
    _, gradient = SoftmaxCrossEntropy(0.2).reference(logits, labels)
    for i, c in np.ndindex(3, 4):
        moved = [
            SoftmaxCrossEntropy(0.2).reference(logits + sign * step * _one(i, c), labels)[0].mean() for sign in (1, -1)
        ]
        assert gradient[i, c] == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-8)


def _one(i, c):
    one = np.zeros((3, 4))
    one[i, c] = 1.0
    return one


def test_counters_add_up_over_micro_batches(bench, rng):
    logits, labels = rng.standard_normal((11, 7)), rng.integers(0, 7, 11)
    control = make_control(bench, labels, 1 / 16)
    tx = bench.put(logits)
    for _ in range(3):
        emit_count(bench, [SoftmaxCrossEntropy().emit(bench, tx, control, None)], control, 11)
    bench.run()
    losses, _ = SoftmaxCrossEntropy().reference(logits, labels)
    counters = bench.get(control.counters)[0]
    assert counters[Counter.LOSS] == pytest.approx(3 * losses.sum(), rel=1e-5)
    assert counters[Counter.CORRECT] == 3 * (logits.argmax(-1) == labels).sum()
    assert counters[Counter.SEEN] == 33


def test_gradient_is_of_the_mini_batch(bench, rng):
    """A micro-batch of 4 of a mini-batch of 20: its share is sums / 20."""
    logits, labels = rng.standard_normal((4, 5)), rng.integers(0, 5, 4)
    control, tdx = make_control(bench, labels, 1 / 20), bench.empty((4, 5))
    emit_count(bench, [SoftmaxCrossEntropy().emit(bench, bench.put(logits), control, tdx)], control, 4)
    bench.run()
    close(bench.get(tdx), SoftmaxCrossEntropy().reference(logits, labels)[1] * 4 / 20)


@pytest.mark.parametrize("where", (0, 2))
def test_nan_reaches_the_loss(bench, rng, where):
    logits = rng.standard_normal((3, 4))
    logits[1, where] = np.nan
    control = make_control(bench, np.array([0, 1, 2]), 1.0)
    emit_count(bench, [SoftmaxCrossEntropy().emit(bench, bench.put(logits), control, None)], control, 3)
    bench.run()
    assert np.isnan(bench.get(control.counters)[0, Counter.LOSS])


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("op", (Softmax(), LogSoftmax()), ids=str)
def test_inside_a_network(bench, rng, op, channels):
    check_plain(op, bench, rng, (channels,))
    check_plain(op, bench, rng, (3, 4, channels))


@pytest.mark.parametrize("classes", (2, 10, 33))
def test_the_logarithm_of_tiny_probabilities_is_finite(bench, rng, classes):
    """exp(-2000) is 0: Softmax, then Log gives -infinity and gradients that are NaN."""
    x = rng.uniform(-1000, 1000, (4, classes))
    x[0, :2] = -1000, 1000
    dy = rng.standard_normal(x.shape)
    tx, ty, tdx = bench.put(x), bench.empty(x.shape), bench.empty(x.shape)
    LogSoftmax().emit_forward(bench, [tx], ty)
    LogSoftmax().emit_backward(bench, [tx], ty, bench.put(dy), [Target(tdx)])
    bench.run()
    close(bench.get(ty), LogSoftmax().reference_forward([x], {}), 1e-6)
    close(bench.get(tdx), LogSoftmax().reference_backward([x], {}, dy)[0][0], 2e-4)  # exp of a float near 2000


@pytest.mark.parametrize("shape", [(9,), (2, 3, 5)])
def test_weights_and_pixels(bench, rng, shape):
    logits, labels = rng.standard_normal((*shape, 7)), rng.integers(0, 7, shape)
    right = (logits.argmax(-1) == labels).mean() * shape[0]
    check_loss(bench, SoftmaxCrossEntropy(0.1), logits, labels, right, 2, rng.uniform(0, 2, shape))
