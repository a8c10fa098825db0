"""Mix-up and cut-mix: against plain loops in NumPy, in a training, and across an interruption."""

import numpy as np
import pytest
from scipy.stats import beta, kstest

import edgelearn as el
from edgelearn.data.augmentation import CutMix, CutOut, MixUp
from edgelearn.errors import DataError, PlanError, ShapeError
from edgelearn.ops import Conv2D, Dense, GlobalAveragePooling2D
from edgelearn.train import MixedSource, Subset, VariedSource

MIXTURES = [MixUp(3, 0.4), CutMix(3)]
COUNT, SHAPE = 11, (9, 12, 3)
Y = np.eye(4, dtype=np.float32)[np.arange(COUNT) % 4]


@pytest.fixture
def x():
    return np.random.default_rng(0).random((COUNT, *SHAPE)).astype(np.float32)


def small(loss=None):
    network = el.Network("small", SHAPE)
    for name, op in {"conv": Conv2D(8, 3), "pool": GlobalAveragePooling2D(), "dense": Dense(4)}.items():
        network.add(name, op)
    return el.Model(network, seed=1).compile(el.SGD(0.1), loss or el.losses.CategoricalCrossentropy())


def test_mixup_against_numpy(x):
    kind = MIXTURES[0]
    indices = np.array([7, 0, 3, 10])
    found, source = [], MixedSource(x, kind).at_epoch(2)
    for i in indices:
        (j,), share = kind.partners(np.array([i]), COUNT, 2), np.float32(kind.shares(np.array([i]), 2, SHAPE).item())
        found.append((share * x[i] + (1 - share) * x[j], share * Y[i] + (1 - share) * Y[j]))
    assert np.array_equal(source[indices], [pictures for pictures, _ in found])
    assert np.array_equal(source.mixed_targets(Y, indices), [targets for _, targets in found])


def test_cutmix_against_numpy(x):
    kind, epoch, cut = MIXTURES[1], 1, 0
    source = MixedSource(x, kind).at_epoch(epoch)
    pictures, targets = source[np.arange(COUNT)], source.mixed_targets(Y, np.arange(COUNT))
    partners = kind.partners(np.arange(COUNT), COUNT, epoch)
    u = np.random.default_rng([3, 35, epoch]).random((16, 3))  # as edgelearn.data.draws draws it
    for i, j in enumerate(partners):
        side = np.sqrt(1 - beta(1, 1).ppf(u[i, 0]))
        high, wide = int(side * 9), int(side * 12)
        top, left = int(u[i, 1] * 9) - high // 2, int(u[i, 2] * 12) - wide // 2
        expected, kept = x[i].copy(), 0
        for row in range(9):
            for column in range(12):
                if top <= row < top + high and left <= column < left + wide:
                    expected[row, column] = x[j, row, column]
                else:
                    kept += 1
        cut += kept < 108
        assert np.array_equal(pictures[i], expected)
        np.testing.assert_allclose(targets[i], kept / 108 * Y[i] + (1 - kept / 108) * Y[j], atol=1e-6)
    assert cut > COUNT // 2


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_have_the_published_distribution(alpha):
    indices = np.arange(4000)
    shares = MixUp(0, alpha).shares(indices, 0, SHAPE).reshape(-1).astype(float)
    assert kstest(shares, beta(alpha, alpha).cdf).pvalue > 0.001
    partners = MixUp(0).partners(indices, 4000, 0)
    assert kstest(partners / 4000, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(partners, shares)[0, 1]) < 0.06


@pytest.mark.parametrize("kind", MIXTURES, ids=lambda kind: type(kind).__name__)
def test_a_mixture_follows_from_the_example_and_the_epoch_alone(x, kind):
    source, indices = MixedSource(x, kind), np.array([4, 0, 10, 2])
    assert np.array_equal(source.at_epoch(1)[indices][2:], source.at_epoch(1)[indices[2:]])
    assert not np.array_equal(source.at_epoch(1)[indices], source.at_epoch(2)[indices])
    rows = source.at_epoch(1).mixed_targets(Y, indices)
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
    assert not np.array_equal(rows, source.at_epoch(2).mixed_targets(Y, indices))


@pytest.mark.parametrize("kind", MIXTURES, ids=lambda kind: type(kind).__name__)
def test_a_training_has_the_mixed_targets_of_each_epoch(x, kind):
    mixed, by_hand, source = small(), small(), MixedSource(x, kind)
    mixed.fit(source, Y, batch_size=COUNT, epochs=3, shuffle=False, verbose=0)
    every = np.arange(COUNT)
    for epoch in range(3):
        now = source.at_epoch(epoch)
        by_hand.train_on_batch(now[every], now.mixed_targets(Y, every))
    for name, array in mixed.weights.items():
        np.testing.assert_allclose(array, by_hand.weights[name], atol=1e-6)


@pytest.mark.parametrize("kind", MIXTURES, ids=lambda kind: type(kind).__name__)
def test_resumed_equals_uninterrupted(x, kind, tmp_path):
    source = MixedSource(VariedSource(x, CutOut(0, 3), np.float32), kind)
    whole, part = small(), small()
    whole.fit(source, Y, batch_size=3, epochs=4, verbose=0)
    part.fit(source, Y, batch_size=3, epochs=2, verbose=0)
    part.save(tmp_path / "m.safetensors")
    again = el.load(
        tmp_path / "m.safetensors", optimizer=el.SGD(0.1), loss=el.losses.CategoricalCrossentropy()
    )  # fmt: skip
    again.fit(source, Y, batch_size=3, epochs=4, verbose=0)
    assert all(np.array_equal(array, again.weights[name]) for name, array in whole.weights.items())


def test_evaluation_mixes_targets_too(x):
    model, source, every = small(), MixedSource(x, MIXTURES[0]), np.arange(COUNT)
    assert model.evaluate(source, Y, 4) == model.evaluate(source[every], source.mixed_targets(Y, every), 4)


def test_examples_of_one_axis_are_mixed(x):
    flat = x.reshape(COUNT, -1)
    assert MixedSource(flat, MIXTURES[0])[np.arange(3)].shape == (3, flat.shape[1])
    with pytest.raises(DataError, match="pictures"):
        MixedSource(flat, MIXTURES[1])[np.arange(3)]


def test_what_cannot_be_mixed_is_refused(x):
    source = MixedSource(x, MIXTURES[0])
    with pytest.raises(ShapeError, match="one-hot"):
        small(el.losses.SoftmaxCrossEntropy()).fit(source, np.arange(COUNT) % 4)
    with pytest.raises(PlanError, match="validation_data"):
        small().fit(source, Y, validation_split=0.2)
    with pytest.raises(PlanError, match="sample_weight"):
        small().fit(source, Y, sample_weight=np.ones(COUNT))
    with pytest.raises(PlanError, match="outermost"):
        small().fit(Subset(source, np.arange(5)), Y[:5])
    for make in (MixUp, CutMix):
        with pytest.raises(DataError, match="alpha"):
            make(0, 0.0)
