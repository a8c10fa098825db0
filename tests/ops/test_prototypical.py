import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import Prototypical

from .harness import SIZES
from .losses import check_loss, check_reference


def episode(rng, loss: Prototypical, size: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings around a centre for each way, and further out for queries that are none of them."""
    centres = rng.normal(0, 1, (loss.num_classes + 1, size * (1 + loss.dummy_prototypes)))
    labels = np.concatenate([
        np.repeat(np.arange(loss.num_classes), loss.shots), rng.integers(0, loss.labels(0).stop, queries),
    ])  # fmt: skip
    return centres[labels] + rng.normal(0, 0.6, (len(labels), centres.shape[1])), labels


def right(loss: Prototypical, x: np.ndarray, labels: np.ndarray) -> float:
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


def check(bench, rng, loss, size, queries, share=1):
    x, labels = episode(rng, loss, size, queries)
    check_loss(bench, loss, x, labels, right(loss, x, labels), share)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dummies", (0, 3))
def test_sizes(bench, rng, size, dummies):
    check(bench, rng, Prototypical(4, 3, scale=1 / size, dummy_prototypes=dummies), size, 17)


@pytest.mark.parametrize("ways, shots, queries", [(2, 1, 1), (3, 5, 33), (65, 1, 2)])
@pytest.mark.parametrize("distance", ("euclidean", "cosine"))
def test_episodes(bench, rng, ways, shots, queries, distance):
    settings = {"scale": 0.05 if distance == "euclidean" else 5.0, "open_weight": 0.7, "dummy_temperature": 2.0}
    check(bench, rng, Prototypical(ways, shots, distance, dummy_prototypes=2, **settings), 20, queries, share=2)


def test_far_away(bench, rng):
    """Losses of thousands: the right prototype's share of the softmax is 0 in float32."""
    loss = Prototypical(3, 2, scale=1e3, dummy_prototypes=1)
    check(bench, rng, loss, 12, 9)


@pytest.mark.parametrize("dummies", (0, 2))
@pytest.mark.parametrize("distance", ("euclidean", "cosine"))
def test_reference(rng, distance, dummies):
    loss = Prototypical(3, 2, distance, 0.8, dummies, dummy_temperature=2.0, open_weight=1.5)
    check_reference(loss, *episode(rng, loss, 4, 5))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_classes": 1},
        {"shots": 0},
        {"dummy_prototypes": -1},
        {"distance": "hamming"},
        {"scale": 0.0},
        {"dummy_temperature": -1.0},
    ],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(PlanError):
        Prototypical(**({"num_classes": 3, "shots": 2} | settings))


def test_no_episode():
    with pytest.raises(PlanError):
        Prototypical(3, 2).check((16,), 6)
    with pytest.raises(PlanError, match="2 times"):
        Prototypical(3, 2, dummy_prototypes=2).check((16,), 8)
