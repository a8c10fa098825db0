import sys

import numpy as np
import pytest

from edgelearn.errors import FormatError, NonFiniteError, PlanError, RunError
from edgelearn.federated.privacy import (
    STEP,
    LocalPrivacy,
    Masks,
    Privacy,
    gaussian_delta,
    gaussian_epsilon,
    sampled_epsilon,
)
from edgelearn.federated.strategy import norm

SHAPES = [(30, 40), (7,)]


def changes(*scales: float) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    return [[np.float32(scale * rng.standard_normal(shape)) for shape in SHAPES] for scale in scales]


def test_long_changes_are_clipped():
    """With next to no noise: the sum of clipped changes, divided by the clients that were drawn."""
    some, privacy = changes(0.01, 5.0, 0.001), Privacy(clip=1.0, noise=1e-9)
    mean = privacy.mean(some, 4, 1)
    lengths = [np.sqrt(sum(np.square(np.float64(a)).sum() for a in change)) for change in some]
    assert lengths[0] < 1 < lengths[1]
    for index, array in enumerate(mean):
        expected = sum(change[index] * min(1, 1 / length) for change, length in zip(some, lengths, strict=True)) / 4
        np.testing.assert_allclose(array, expected, atol=1e-7)
        assert array.dtype == np.float32


def test_noise():
    some, (clip, noise, drawn) = changes(0.0, 0.0), (0.5, 2.0, 10)
    values = np.concatenate([array.ravel() for array in Privacy(clip, noise, seed=3).mean(some, drawn, 7)])
    assert values.std() == pytest.approx(noise * clip / drawn, rel=0.06)
    assert abs(values.mean()) < 4 * noise * clip / drawn / np.sqrt(values.size)
    again, later, other = (
        Privacy(clip, noise, seed=seed).mean(some, drawn, number)[0] for seed, number in ((3, 7), (3, 8), (4, 7))
    )
    assert np.array_equal(again.ravel(), values[: again.size])
    assert not np.array_equal(again, later) and not np.array_equal(again, other)


def test_deviation_of_flower():
    flower = pytest.importorskip("flwr.supercore.differential_privacy")
    assert flower.compute_stdv(2.0, 0.5, 10) == pytest.approx(2.0 * 0.5 / 10)
    arrays = changes(5.0)[0]
    theirs = [array.copy() for array in arrays]
    flower.clip_inputs_inplace(theirs, 1.0)
    for mine, other in zip(Privacy(1.0, 1e-9).mean(changes(5.0), 1, 1), theirs, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


@pytest.mark.parametrize("mu, epsilon, delta", [(1.0, 1.0, 0.126936737507), (1.0, 0.0, 0.382924922548)])
def test_delta_of_one_release(mu, epsilon, delta):
    """Dong, Roth and Su 2022, "Gaussian differential privacy", corollary 2.13."""
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("noise, rounds", [(1.0, 1), (1.0, 50), (4.0, 50), (0.3, 100), (50.0, 3)])
def test_epsilon(noise, rounds):
    epsilon = gaussian_epsilon(noise, rounds, 1e-5)
    assert gaussian_delta(np.sqrt(rounds) / noise, epsilon) == pytest.approx(1e-5, rel=1e-4)
    alphas = np.linspace(1.0001, 400, 400_000)
    renyi = np.min(alphas * rounds / (2 * noise**2) + np.log(1e5) / (alphas - 1))  # Mironov 2017, proposition 3
    classic = np.sqrt(2 * np.log(1.25e5)) * np.sqrt(rounds) / noise  # Dwork and Roth 2014, theorem A.1, below 1
    assert epsilon < renyi < 2.2 * epsilon + 0.1
    assert epsilon < classic or classic > 1


def test_epsilon_of_flowers_accountant():
    """Flower's accountant bounds the same loss by Rényi divergences: it is never below the exact value."""
    pytest.importorskip("dp_accounting")
    from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

    for noise, rounds in ((1.0, 10), (3.0, 100)):
        config = PrivacyConfig(
            target_delta=1e-5, population_size=100, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )  # fmt: skip
        accountant = RdpAccountant(config)
        accountant.compose(GaussianPrivacyEvent(noise_multiplier=noise, sample_size=100, population_size=100), rounds)
        exact = gaussian_epsilon(noise, rounds, 1e-5)
        assert exact <= accountant.get_epsilon(1e-5) <= 1.1 * exact


def test_sampling_protects_more():
    """All clients drawn: the bound by Rényi divergences of half of the noise. A tenth of them: far less is lost."""
    pytest.importorskip("dp_accounting")
    whole, exact = sampled_epsilon(4.0, 20, 1e-5, 100, 100), gaussian_epsilon(2.0, 20, 1e-5)
    assert exact <= whole <= 1.1 * exact
    assert sampled_epsilon(4.0, 20, 1e-5, 10, 100) < 0.3 * exact and sampled_epsilon(4.0, 0, 1e-5, 10, 100) == 0
    assert Privacy(1.0, 4.0, sampled=(10, 100)).logs(20)["epsilon"] == sampled_epsilon(4.0, 20, 1e-5, 10, 100)


def test_an_accountant_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(RunError, match=r"edgelearn\[privacy\]"):
        Privacy(1.0, 1.0, sampled=(1, 2)).epsilon(1)


def test_clients_add_noise_themselves():
    local, some = LocalPrivacy(clip=0.5, noise=2.0, seed=3), changes(5.0, 0.0)
    quiet = LocalPrivacy(clip=0.5, noise=1e-9).protect(some[0], 1, 1)
    assert norm(quiet) == pytest.approx(0.5, rel=1e-5) and all(array.dtype == np.float32 for array in quiet)
    values = np.concatenate([array.ravel() for array in local.protect(some[1], 1, 1)])
    assert values.std() == pytest.approx(1.0, rel=0.06)
    again, later, other = (local.protect(some[1], *of)[0] for of in ((1, 1), (1, 2), (2, 1)))
    assert np.array_equal(again.ravel(), values[: again.size])
    assert not np.array_equal(again, later) and not np.array_equal(again, other)
    assert local.epsilon(5) == gaussian_epsilon(1.0, 5, 1e-5)
    with pytest.raises(PlanError):
        LocalPrivacy(clip=0.0, noise=1.0)


def test_no_round_no_loss():
    assert gaussian_epsilon(1.0, 0, 1e-5) == 0
    assert gaussian_epsilon(1e9, 1, 1e-5) == 0


@pytest.mark.parametrize("bad", [{"clip": 0.0}, {"noise": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"clip": float("nan")}])
def test_values_out_of_range(bad):
    with pytest.raises(PlanError):
        Privacy(**({"clip": 1.0, "noise": 1.0} | bad))


MASKED, CLIENTS = [(5, 7), (300,), (0,)], [2, 3, 11]
MASKS = Masks(lambda number: CLIENTS, 5)


def masked_changes() -> dict[int, list[np.ndarray]]:
    rng = np.random.default_rng(1)
    return {client: [np.float32(rng.standard_normal(shape)) for shape in MASKED] for client in CLIENTS}


def received() -> list[list[np.ndarray]]:
    return [MASKS.decode(MASKS.hide(arrays, client, 1), MASKED) for client, arrays in masked_changes().items()]


def test_masks_cancel():
    for mean, parts in zip(MASKS.mean(received(), 3, 1), zip(*masked_changes().values(), strict=True), strict=True):
        assert mean.dtype == np.float32
        np.testing.assert_allclose(mean, np.mean(np.float64(parts), axis=0), atol=STEP / 2 + 1e-6)


def test_a_message_looks_random():
    zeros = [np.zeros(20_000, np.float32)]
    data = MASKS.hide(zeros, 2, 1)
    values = np.frombuffer(data, np.uint32) / 2**32
    assert values.mean() == pytest.approx(0.5, abs=0.01) and np.histogram(values, 10)[0].min() > 1800
    assert data != MASKS.hide(zeros, 2, 2)


def test_without_a_client_the_sum_is_noise():
    assert np.abs(MASKS.mean(received()[1:], 2, 1)[1]).mean() > 50


def test_what_cannot_be_added():
    for value, error in ((2000.0, FormatError), (np.nan, NonFiniteError)):
        with pytest.raises(error):
            Masks(lambda number: [0, 1]).hide([np.float32([value])], 0, 1)
    with pytest.raises(FormatError):
        MASKS.decode(b"abc", MASKED)
