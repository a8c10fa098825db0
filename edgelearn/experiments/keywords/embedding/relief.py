"""How far away dummies are taken to be, chosen without the words and speakers that are tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.experiments.keywords.episodes import Episodes
from edgelearn.experiments.keywords.evaluate import Evaluator
from edgelearn.experiments.keywords.metrics import Interval, interval, student_t
from edgelearn.keywords.learners import DummyPrototypes, Embedder

WAYS, EPISODES = 5, 50  # of each speaker, with a clip a word
RELIEFS = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0)


def choose_relief(
    embedder: Embedder, trained: ClipDataset, features: np.ndarray, reliefs: Sequence[float] = RELIEFS
) -> DummyPrototypes:
    """Of rising `reliefs` the largest, which comes closest to prototypes without dummies, whose AUROC with words and
    speakers that were `trained` on is no more than a standard error below the best (the rule of one standard error:
    Breiman, Friedman, Olshen and Stone 1984, "Classification and Regression Trees"). Speakers are what the error is
    over: episodes of the same one share clips."""
    learners = [DummyPrototypes(relief) for relief in reliefs]
    by_speaker = np.array([
        [evaluator.run(learner, episodes).measures["auroc"].mean for learner in learners]
        for evaluator, episodes in _of_each_speaker(embedder, trained, features)
    ])  # fmt: skip
    return learners[within_an_error([interval(of_one) for of_one in by_speaker.T])]


def _of_each_speaker(
    embedder: Embedder, trained: ClipDataset, features: np.ndarray
) -> Iterator[tuple[Evaluator, Episodes]]:
    ways = min(WAYS, len(trained.class_names) - 1)
    for speaker in np.unique(trained.speakers):
        own = trained.speakers == speaker
        yield Evaluator(embedder, features[own]), Episodes(trained.take(own), ways, 1, 5, None, "same", EPISODES)


def within_an_error(found: Sequence[Interval]) -> int:
    """The last that is no more than the standard error of the best below the best."""
    best = max(found, key=lambda each: each.mean)
    error = best.margin / student_t(0.95, best.count - 1)
    return int(np.flatnonzero([each.mean >= best.mean - error for each in found])[-1])
