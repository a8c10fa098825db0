"""Losses against float64: a table of losses, and what is right."""

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.ops import CategoricalCrossentropy, MinimumEntropy, Prototypical, SoftmaxCrossEntropy
from edgelearn.ops.constants import Counter
from edgelearn.ops.loss import emit_count

from .harness import AS_GPUS_TOO, SIZES, close
from .losses import check_loss, check_reference, make_control

REGRESSION = (ops.MeanSquaredError(), ops.MeanAbsoluteError(), ops.Huber(), ops.Huber(0.3))
BINARY = (
    ops.BinaryCrossentropy(), ops.BinaryCrossentropy(0.2), ops.BinaryFocalCrossentropy(),
    ops.BinaryFocalCrossentropy(0.1, 1.5, 0.25), ops.BinaryFocalCrossentropy(gamma=0.5),
    ops.BinaryFocalCrossentropy(gamma=0),
)  # fmt: skip
CATEGORICAL = (
    CategoricalCrossentropy(), CategoricalCrossentropy(0.1), ops.CategoricalFocalCrossentropy(),
    ops.CategoricalFocalCrossentropy(0.2, 0.5, 1.0), ops.CategoricalFocalCrossentropy(gamma=0),
)  # fmt: skip
HINGES = (ops.CodewordHinge(), ops.CodewordHinge(0.2), ops.PositiveHinge(), ops.PositiveHinge(0.1))
ALL = (*REGRESSION, *BINARY, *CATEGORICAL, *HINGES)
FIRST = (REGRESSION[0], BINARY[0], CATEGORICAL[0], HINGES[0])  # the loops over rows are those of all of a kind


def draw(loss, rng, shape, soft=False):
    """(outputs, targets, right answers)"""
    x, count = rng.standard_normal(shape) * 3, shape[-1]
    if loss in BINARY:
        y = rng.uniform(size=shape) if soft else rng.integers(0, 2, shape).astype(float)
        return x, y, ((x > 0) == (y > 0.5)).mean(-1)
    if loss in CATEGORICAL:
        y = rng.uniform(size=shape) if soft else np.eye(count)[rng.integers(0, count, shape[:-1])]
        return x, y, x.argmax(-1) == y.argmax(-1)
    return x, rng.standard_normal(shape) * 2, np.zeros(shape[:-1])


WEIGHTED = [
    *((loss, outputs) for loss in FIRST for outputs in SIZES if loss not in HINGES or outputs > 1),  # the cosine is ±1
    *((loss, 33) for loss in ALL if loss not in FIRST),
]
SOFT = [
    *((loss, shape) for loss in FIRST[:3] for shape in ((3, 4), (2, 3, 5, 6), (2, 3, 17), (33, 2))),
    *((loss, (2, 3, 17)) for loss in (*REGRESSION, *BINARY[:4], *CATEGORICAL) if loss not in FIRST),
]


@pytest.mark.parametrize(("loss", "outputs"), WEIGHTED, ids=str)
def test_weighted_rows(bench, rng, loss, outputs):
    x, y, right = draw(loss, rng, (9, outputs))
    check_loss(bench, loss, x, y, right.sum(), share=3, weights=rng.uniform(0, 2, 9))


@pytest.mark.parametrize(("loss", "shape"), SOFT, ids=str)
def test_soft_targets_of_pixels(bench, rng, loss, shape):
    x, y, right = draw(loss, rng, shape, soft=True)
    check_loss(bench, loss, x, y, right.sum() * len(x) / (x.size / shape[-1]))


@pytest.mark.parametrize("loss", HINGES, ids=str)
@pytest.mark.parametrize("shape", [(1, 127), (33, 20), (2, 511)])
def test_codewords(bench, rng, loss, shape):
    x, v = rng.standard_normal(shape), rng.choice([-1.0, 1.0], shape[1])
    check_loss(bench, loss, x, np.tile(v, (len(x), 1)), 0)


CERTAIN = np.array([[300.0, -300.0, 300.0, -300.0, 0.0]])  # exp(300) is infinite
BY_HAND = [  # losses, outputs, targets, right answers
    *((loss, CERTAIN, np.array([[1.0, 0.0, 0.0, 1.0, 1.0]]), 0.4) for loss in BINARY),
    *((loss, CERTAIN[:, [0, 1, 4]].repeat(2, 0), np.eye(3)[:2], 1) for loss in CATEGORICAL),
    (SoftmaxCrossEntropy(), CERTAIN[:, [0, 1, 4]], np.array([1]), 0),
    (ops.MeanAbsoluteError(), np.array([[1.0, 2.0]]), np.array([[1.0, 0.5]]), 0),  # no difference has no slope
    *((loss, np.arange(1.0, 7).reshape(2, 3), np.arange(2.0, 13, 2).reshape(2, 3), 0) for loss in HINGES[1:]),
]


@pytest.mark.parametrize(("loss", "x", "y", "right"), BY_HAND)
def test_answers_that_are_certain(bench, loss, x, y, right):
    check_loss(bench, loss, x, y, right)


@pytest.mark.parametrize("loss", ALL, ids=str)
def test_gradients_of_references(rng, loss):
    x, y, _ = draw(loss, rng, (3, 4), soft=True)
    check_reference(loss, x, np.clip(y, 0.1, 0.9) if loss in BINARY else y)


def test_one_hot_is_the_loss_of_class_numbers(rng):
    x, labels = rng.standard_normal((5, 4)), rng.integers(0, 4, 5)
    own = CategoricalCrossentropy(0.1).reference(x, np.eye(4)[labels])
    for ours, theirs in zip(own, SoftmaxCrossEntropy(0.1).reference(x, labels), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_the_codeword_loss_as_published(rng):
    """max(0, 1 - v·s(y) / c), s scaling to the length √c."""
    y, v = rng.standard_normal((5, 127)), rng.choice([-1.0, 1.0], (5, 127))
    scaled = y / np.linalg.norm(y, axis=1, keepdims=True) * np.sqrt(127)
    losses, _ = ops.CodewordHinge().reference(y, v)
    np.testing.assert_allclose(losses, np.maximum(0, 1 - (v * scaled).sum(1) / 127), rtol=1e-12)


@pytest.mark.parametrize("loss", HINGES, ids=str)
def test_lengths_do_not_matter(rng, loss):
    x, y = rng.standard_normal((2, 4, 7))
    np.testing.assert_allclose(loss.reference(9 * x, 0.1 * y)[0], loss.reference(x, y)[0], rtol=1e-9)


# -- class numbers -----------------------------------------------------------------------------------------------------


def right_classes(logits: np.ndarray, labels: np.ndarray) -> float:
    return (np.float32(logits).argmax(-1) == labels).mean() * len(labels)


def test_sums_over_a_vocabulary_keep_their_bits(bench):
    """One float32 sum over so many tokens would be off by 1e-4."""
    logits = np.full((1, 49152), -9.0)
    logits[0, :2] = 1.0, -3.0
    check_loss(bench, SoftmaxCrossEntropy(), logits, np.array([1], np.int32), 0.0)
    control = make_control(bench, np.array([1], np.int32), 1.0)
    emit_count(bench, [SoftmaxCrossEntropy().emit(bench, bench.put(logits), control, None)], control, 1)
    bench.run()
    expected = np.log(np.exp(logits).sum()) + 3
    assert bench.count(control, Counter.LOSS) == pytest.approx(expected, rel=4e-6)


@AS_GPUS_TOO
@pytest.mark.parametrize("smoothing", (0.0, 0.1))
@pytest.mark.parametrize(
    "shape", [*((9, classes) for classes in SIZES), *((n, 5) for n in SIZES), (70, 65), (70, 300), (2, 3, 5, 7)]
)
def test_class_numbers(bench, rng, shape, smoothing):
    logits, labels = rng.standard_normal(shape) * 3, rng.integers(0, shape[-1], shape[:-1])
    weights = rng.uniform(0, 2, shape[:-1])
    for given in (None, weights):
        check_loss(bench, SoftmaxCrossEntropy(smoothing), logits, labels, right_classes(logits, labels), 5, given)


@pytest.mark.parametrize("level", (-1e4, 1e4))
def test_large_logits(bench, rng, level):
    """exp(1e4) is infinite: the largest logit must be taken off first."""
    logits, labels = level + rng.standard_normal((6, 20)) * 30, rng.integers(0, 20, 6)
    check_loss(bench, SoftmaxCrossEntropy(0.1), logits, labels, right_classes(logits, labels))
    close(probabilities(bench, logits), ops.Softmax().reference_forward([np.float64(np.float32(logits))], {}))


def probabilities(bench, logits: np.ndarray) -> np.ndarray:
    y = bench.empty(logits.shape)
    ops.Softmax().emit_forward(bench, [bench.put(logits)], y)
    bench.run()
    return bench.get(y)


@AS_GPUS_TOO
def test_ties_go_to_the_first_class(bench):
    """Whichever work-item of a GPU sees it."""
    logits = np.zeros((3, 200))
    logits[0, [70, 6]] = logits[1, [199, 130]] = 1.0
    check_loss(bench, SoftmaxCrossEntropy(), logits, np.array([6, 130, 0]), 3)


@pytest.mark.parametrize("where", (0, 2))
def test_nan_reaches_the_loss(bench, rng, where):
    logits = rng.standard_normal((3, 4))
    logits[1, where] = np.nan
    control = make_control(bench, np.array([0, 1, 2]), 1.0)
    emit_count(bench, [SoftmaxCrossEntropy().emit(bench, bench.put(logits), control, None)], control, 3)
    bench.run()
    assert np.isnan(bench.count(control, Counter.LOSS))


def test_gradient_of_class_numbers(rng):
    check_reference(SoftmaxCrossEntropy(0.2), rng.standard_normal((3, 4)), np.array([0, 3, 1]))


@pytest.mark.parametrize("classes", SIZES)
def test_unlabelled_examples(bench, rng, classes):
    logits, labels = rng.standard_normal((11, classes)) * 3, rng.integers(-1, classes, 11)
    check_loss(bench, MinimumEntropy(0.3), logits, labels, (logits.argmax(-1) == labels).sum())
    check_loss(bench, MinimumEntropy(), rng.standard_normal((classes, 5)), np.full(classes, -1), 0, share=3)


def test_entropy_of_large_logits(bench, rng):
    logits, labels = 1e4 + rng.standard_normal((6, 20)) * 30, rng.integers(-1, 20, 6)
    check_loss(bench, MinimumEntropy(), logits, labels, (np.float32(logits).argmax(-1) == labels).sum())
    check_reference(MinimumEntropy(0.4), rng.standard_normal((4, 3)), np.array([-1, 2, -1, 0]))


# -- episodes ----------------------------------------------------------------------------------------------------------


def episode(rng, loss: Prototypical, size: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings around a centre for each way, and further out for queries that are none of them."""
    centres = rng.normal(0, 1, (loss.num_classes + 1, size * (1 + loss.dummy_prototypes)))
    support = np.repeat(np.arange(loss.num_classes), loss.shots)
    labels = np.concatenate([support, rng.integers(0, loss.labels(0).stop, queries)])
    return centres[labels] + rng.normal(0, 0.6, (len(labels), centres.shape[1])), labels


def right_queries(loss: Prototypical, x: np.ndarray, labels: np.ndarray) -> float:
    """The right answers to queries, by the nearest prototype one after the other."""
    size, found = x.shape[1] // (1 + loss.dummy_prototypes), 0
    p = loss.prototypes(x[: loss.support])
    for row, label in zip(x[loss.support :, :size], labels[loss.support :], strict=True):
        temperature = np.where(np.arange(len(p)) < loss.num_classes, 1, loss.dummy_temperature)
        if loss.distance == "cosine":
            logits = p @ row / np.linalg.norm(p, axis=1) / np.linalg.norm(row) / temperature
        else:
            logits = -np.square(p - row).sum(1) / temperature
        found += min(int(logits.argmax()), loss.num_classes) == label
    return found * len(x) / (len(x) - loss.support)


EPISODES = [  # loss, size of embeddings, queries, micro-batches of a mini-batch
    *((Prototypical(4, 3, scale=1 / size, dummy_prototypes=dummies), size, 17, 1)
      for dummies in (0, 3) for size in SIZES),
    *((Prototypical(ways, shots, distance, scale=scale, dummy_prototypes=2, open_weight=0.7, dummy_temperature=2.0), 20,
       queries, 2)
      for distance, scale in (("euclidean", 0.05), ("cosine", 5.0))
      for ways, shots, queries in ((2, 1, 1), (3, 5, 33), (65, 1, 2))),
    # Losses of thousands: the right prototype's share of the softmax is 0 in float32.
    (Prototypical(3, 2, scale=1e3, dummy_prototypes=1), 12, 9, 1),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "size", "queries", "share"), EPISODES)
def test_episodes(bench, rng, loss, size, queries, share):
    x, labels = episode(rng, loss, size, queries)
    check_loss(bench, loss, x, labels, right_queries(loss, x, labels), share)


@pytest.mark.parametrize("dummies", (0, 2))
@pytest.mark.parametrize("distance", ("euclidean", "cosine"))
def test_gradients_of_episodes(rng, distance, dummies):
    loss = Prototypical(3, 2, distance, 0.8, dummies, dummy_temperature=2.0, open_weight=1.5)
    check_reference(loss, *episode(rng, loss, 4, 5))
