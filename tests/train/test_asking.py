"""Strategies of asking for labels, on clusters in a plane."""

from __future__ import annotations

import numpy as np
import pytest

from edgelearn.errors import DataError
from edgelearn.train.asking import STRATEGIES, ask

CENTRES = np.array([[9, 0], [0, 9], [7, 7], [9, 3]], np.float32)


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), (60, 30, 20, 10))
    x = CENTRES[labels] + rng.normal(0, 0.3, (120, 2)).astype(np.float32)
    answers = rng.dirichlet(np.ones(4), 120)
    return x, answers, labels


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_chooses_examples_without_labels_and_repeats(strategy, world):
    x, answers, _ = world
    labelled = list(range(0, 110, 2))
    found = ask(strategy, x, answers, labelled, 9, seed=1)
    assert len(set(found.tolist())) == 9 and not set(found.tolist()) & set(labelled)
    assert np.array_equal(found, ask(strategy, x, answers, labelled, 9, seed=1))
    assert len(ask(strategy, x, answers, [], 3)) == 3
    assert sorted(ask(strategy, x, answers, range(118), 2).tolist()) == [118, 119]


def test_typical_examples_are_of_each_cluster(world):
    x, answers, labels = world
    first = [ask("typical", x, answers, [], 4, seed) for seed in range(5)]
    assert all(len(set(labels[found].tolist())) >= 3 for found in first)
    asked = np.flatnonzero(labels == 0)[:2]
    assert 0 not in labels[ask("typical", x, answers, asked, 2, seed=3)]


def test_margin_and_badge(world):
    x, answers, _ = world
    best = np.sort(answers, 1)
    close = np.argsort(best[:, -1] - best[:, -2])
    assert np.array_equal(ask("margin", x, answers, [close[0]], 3), close[1:4])
    sure = np.eye(4)[np.zeros(120, int)]
    sure[[5, 70]] = 0.25
    assert ask("badge", x, sure, [0], 2)[0] in (5, 70), "only these have gradients"


def test_what_cannot_be_asked(world):
    x, answers, _ = world
    for arguments, words in (
        (("guess", x, answers, []), "random, typical"),
        (("random", x, answers, range(120)), "0 examples"),
    ):
        with pytest.raises(DataError, match=words):
            ask(*arguments)
