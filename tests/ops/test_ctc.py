"""CTC: the kernel against float64, that against TensorFlow, and what has no alignment is refused."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import PlanError
from edgelearn.ops import CTC
from edgelearn.ops.constants import Counter
from edgelearn.ops.loss import emit_count

from .harness import close
from .losses import make_control


def draw(rng, n, frames, classes, most, blank):
    """Logits, and labels with repeats, of different lengths, one of them empty."""
    labels = np.full((n, frames), -1)
    for row in range(n):
        own = (blank + rng.integers(1, min(classes, 4), rng.integers(0, most + 1) if row else 0)) % classes
        labels[row, : len(own)] = own
    return rng.standard_normal((n, frames, classes)) * 2, labels


CASES = [(4, 12, 5, 6, 0), (3, 31, 17, 10, 3), (2, 7, 33, 3, 32), (1, 1, 2, 1, 0), (5, 3, 4, 1, 0)]


@pytest.mark.parametrize(("n", "frames", "classes", "most", "blank"), CASES)
def test_reference_is_tensorflows(rng, n, frames, classes, most, blank):
    tf = pytest.importorskip("tensorflow")
    x, labels = draw(rng, n, frames, classes, most, blank)
    logits = tf.Variable(x)
    counts = (labels >= 0).sum(1)
    with tf.GradientTape() as tape:
        losses = tf.nn.ctc_loss(
            tf.constant(np.maximum(labels, 0), tf.int32), tf.cast(logits, tf.float32), tf.constant(counts, tf.int32),
            tf.constant([frames] * n, tf.int32), logits_time_major=False, blank_index=blank,
        )  # fmt: skip
        mean = tf.reduce_mean(losses)
    own, gradient = CTC(blank).reference(x, labels)
    np.testing.assert_allclose(own, losses.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, tape.gradient(mean, logits).numpy(), atol=1e-5)


@pytest.mark.parametrize(("n", "frames", "classes", "most", "blank"), CASES)
def test_kernel(bench, rng, n, frames, classes, most, blank):
    x, labels = draw(rng, n, frames, classes, most, blank)
    loss = CTC(blank, max_labels=None if n % 2 else most)
    control, gradient = make_control(bench, labels, 1 / (2 * n * frames)), bench.empty(x.shape)
    emit_count(bench, [loss.emit(bench, bench.put(x), control, gradient)], control, n)
    bench.run()
    losses, expected = loss.reference(np.float32(x).astype(np.float64), labels)
    assert bench.get(control.counters)[0, Counter.LOSS] == pytest.approx(losses.sum(), rel=1e-5)
    close(bench.get(gradient), expected / 2, 5e-5)
    emit_count(bench, [loss.emit(bench, bench.put(x), control, None)], control, n)
    bench.run()
    assert bench.get(control.counters)[0, Counter.LOSS] == pytest.approx(2 * losses.sum(), rel=1e-5)


def test_a_network_learns_to_spell(rng):
    """Frames that show labels, with pauses of any length: the best path is the sequence."""
    n, frames = 64, 12
    y, x = np.full((n, 3), -1), np.zeros((n, frames, 4), np.float32)
    for row in range(n):
        y[row] = rng.integers(1, 4, 3)
        for place, start in enumerate(rng.integers((0, 4, 8), (2, 6, 10))):
            x[row, start : start + 2, y[row, place]] = 1
    network = el.Network("spell", (frames, 4))
    network.add("grid", el.ops.Reshape((1, frames, 4)))
    network.add("conv", el.ops.Conv2D(16, (1, 3), padding="same"))
    network.add("relu", el.ops.ReLU())
    network.add("classes", el.ops.Conv2D(4, 1))
    network.add("rows", el.ops.Reshape((frames, 4)))
    model = el.Model(network).compile(el.Adam(0.02), "ctc")
    history = model.fit(x, y, batch_size=16, micro_batch=6, epochs=25, validation_data=(x, y)).history["val_loss"]
    assert history[-1] < 0.2 * history[0]
    spelt = CTC().decode(model.predict(x))
    assert np.mean([own == labels.tolist() for own, labels in zip(spelt, y, strict=True)]) > 0.9


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([1, 1, 2, -1], "take 4 frames, and there are 3"),
        ([1, -1, 2, -1], "padded with -1 at their end"),
        ([1, 0, 2, -1], "without the blank 0"),
        ([1, 2, 3, 1], "there are 3"),
    ],
)
def test_labels_without_an_alignment(labels, problem):
    with pytest.raises(PlanError, match=problem):
        CTC().arranged(np.array([labels]), (3, 4))
