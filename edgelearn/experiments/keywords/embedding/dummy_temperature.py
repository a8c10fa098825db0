"""Selection of the temperature of dummy prototypes, without the words and speakers that are tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.experiments.keywords.episodes import Episodes
from edgelearn.experiments.keywords.evaluate import Evaluator
from edgelearn.keywords.learners import DummyPrototypes, Embedder
from edgelearn.lab.runs.statistics import Interval, interval, student_t

NUM_CLASSES, EPISODES = 5, 50  # of each speaker, with one clip of a word
DUMMY_TEMPERATURES = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0)


def select_dummy_temperature(
    embedder: Embedder, trained: ClipDataset, features: np.ndarray, temperatures: Sequence[float] = DUMMY_TEMPERATURES
) -> DummyPrototypes:
    """Select the temperature by AUROC on the words and speakers that were trained with, by the one-standard-error rule
    (Breiman, Friedman, Olshen and Stone 1984, "Classification and Regression Trees").

    The largest temperature comes closest to prototypes without dummies. The largest whose AUROC is within a standard
    error, over speakers, of the best is selected.

    Arguments:
    - `embedder`: has dummy prototypes.
    - `trained`: clips that it was trained with.
    - `features`: of these clips (n, frames, bands).
    - `temperatures`: ascending candidates.
    """
    learners = [DummyPrototypes(dummy_temperature) for dummy_temperature in temperatures]
    by_speaker = np.array([
        [evaluator.run(learner, episodes).measures["auroc"].mean for learner in learners]
        for evaluator, episodes in _speakers(embedder, trained, features)
    ])  # fmt: skip
    return learners[one_standard_error([interval(values) for values in by_speaker.T])]


def _speakers(embedder: Embedder, trained: ClipDataset, features: np.ndarray) -> Iterator[tuple[Evaluator, Episodes]]:
    num_classes = min(NUM_CLASSES, len(trained.class_names) - 1)
    for speaker in np.unique(trained.speakers):
        own = trained.speakers == speaker
        yield Evaluator(embedder, features[own]), Episodes(trained.take(own), num_classes, 1, 5, None, "same", EPISODES)


def one_standard_error(results: Sequence[Interval]) -> int:
    """Index of the last result that is at most the best one's standard error below the best."""
    best = max(results, key=lambda each: each.mean)
    error = best.margin / student_t(0.95, best.count - 1)
    return int(np.flatnonzero([each.mean >= best.mean - error for each in results])[-1])
