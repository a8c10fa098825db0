import numpy as np
import pytest

from edgelearn.errors import DataError, PlanError, ShapeError
from edgelearn.federated import verification
from edgelearn.federated.verification import FedAwS, FedUV, PositivesAlone, make_verification_strategy, spread, unit
from edgelearn.federated.verification import warm_up_threshold as threshold


def energy(w: np.ndarray, near: np.ndarray) -> float:
    """10 Σ -d² over the pairs of `near`."""
    return -10 * sum(np.square(w[i] - w[j]).sum() for i, row in enumerate(near) for j in row)


def test_a_step_follows_the_gradient(rng):
    w = unit(rng.standard_normal((6, 4)))
    distances = np.square(w[:, None] - w).sum(-1) + 10 * np.eye(6)
    near, rate, step = np.argsort(distances, axis=1)[:, :2], 1e-3, 1e-6
    gradient = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        moved = np.zeros_like(w)
        moved[place] = step
        gradient[place] = (energy(w + moved, near) - energy(w - moved, near)) / (2 * step)
    np.testing.assert_allclose(spread(w, rate, nearest=2), unit(w - rate * gradient), atol=1e-6)


def test_spreading_moves_users_apart(rng):
    w = unit(np.ones(32) + 0.1 * rng.standard_normal((12, 32)))
    assert (w @ w.T).min() > 0.9
    for _ in range(60):
        w = spread(w, 0.002)
    assert np.allclose(np.linalg.norm(w, axis=1), 1, atol=1e-6) and (w @ w.T - np.eye(12)).max() < 0.3


def test_users_that_meet_are_parted_from_the_nearest_alone():
    """A step away from all others only takes their mean off: with mean 0, two users who are nearly alike stay so."""
    a, b = unit(np.array([[1.0, 0.2], [1.0, -0.2]]))
    w = np.stack([a, -a, b, -b])
    np.testing.assert_allclose(spread(w, 0.1, nearest=3), w, atol=1e-6)
    apart = spread(w, 0.01, nearest=1)
    assert apart[0] @ apart[2] < a @ b - 0.1 and np.allclose(apart[::2], -apart[1::2], atol=1e-6)


def test_one_user_stays():
    assert spread(np.array([[3.0, 4.0]]), 1.0).tolist() == [[np.float32(0.6), np.float32(0.8)]]


def test_spreading_needs_a_finite_matrix():
    for bad in (np.ones(3), np.full((2, 2), np.nan)):
        with pytest.raises(ShapeError):
            spread(bad, 0.1)


def test_a_vector_turns_to_its_user(rng):
    outputs, strategy = rng.standard_normal((9, 128)) + 0.5, PositivesAlone(vector_rate=0.5)
    moved = w = strategy.vector(3, 0)
    for _ in range(5):
        moved = strategy.moved(moved, outputs)
    assert verification.scores(outputs, moved).mean() > verification.scores(outputs, w).mean() + 0.05
    assert np.linalg.norm(moved) == pytest.approx(1, abs=1e-6)
    assert np.allclose(strategy.arranged(np.stack([w, moved])), np.stack([w, moved]), atol=1e-6)
    assert not np.allclose(FedAwS(spread_rate=0.1).arranged(np.stack([w, moved])), np.stack([w, moved]))


@pytest.mark.parametrize("name", ("feduv", "random", "fedaws", "positives", "fixed", "softmax"))
def test_vectors(name):
    strategy = make_verification_strategy(name, size=255)
    assert strategy.vector(2, 5).shape == (255,) and strategy.vector(2, 5).dtype == np.float32
    assert np.array_equal(strategy.vector(2, 5), strategy.vector(2, 5))
    assert not np.array_equal(strategy.vector(2, 5), strategy.vector(3, 5))
    outputs = np.random.default_rng(0).standard_normal((4, 255))
    losses, gradient = strategy.loss.reference(outputs, np.tile(strategy.vector(2, 5), (4, 1)))
    assert losses.shape == (4,) and gradient.shape == outputs.shape


def test_codewords_of_users_are_unlike():
    """Numbers that count up would share bits, and so would codewords."""
    words = np.stack([FedUV().vector(user, 0) for user in range(50)])
    assert abs((words @ words.T / 127)[~np.eye(50, dtype=bool)].mean()) < 0.03


def test_a_user_may_be_a_number_of_numpy():
    assert np.array_equal(FedUV().vector(np.int64(7), 0), FedUV().vector(7, 0))


def test_unknown_strategys():
    with pytest.raises(PlanError):
        make_verification_strategy("centre")
    with pytest.raises(DataError):
        make_verification_strategy("feduv", size=128)
    with pytest.raises(PlanError):
        make_verification_strategy("feduv", spread_rate=0.1)
    assert isinstance(make_verification_strategy("positives", size=64, rate=None), PositivesAlone)


@pytest.mark.parametrize("rate, expected", [(0.9, 0.1), (1.0, 0.0), (0.5, 0.5), (0.05, 0.9)])
def test_threshold_of_warm_up_scores(rng, rate, expected):
    assert threshold(rng.permutation(np.arange(10) / 10), rate) == pytest.approx(expected)


def test_threshold_needs_scores():
    for values, rate in (([], 0.9), ([np.nan], 0.9), ([0.5], 0.0), ([0.5], 1.1)):
        with pytest.raises(DataError):
            threshold(np.array(values), rate)
