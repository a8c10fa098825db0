"""Thresholds: the known score at which a clip is accepted as one of the enrolled words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.clips import ClipDataset, load_clips
from edgelearn.errors import DataError

from .learners import Embedder, Learner
from .vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class OtherWords:
    """Clips of words that must not be detected; a threshold is set by their scores.

    Arguments:
    - `features`: (n, frames, bands).
    - `words`: name of the word in each clip (n,).
    """

    features: np.ndarray
    words: np.ndarray

    @staticmethod
    def load(clips: ClipDataset, embedder: Embedder) -> OtherWords:
        """Compute the features that `embedder` takes. Raises DataError for a clip that can't be read."""
        sound = load_clips(clips, rate=embedder.front_end.rate, seconds=embedder.seconds)
        return OtherWords(embedder.features(sound), clips.words)

    def outside(self, vocabulary: Vocabulary) -> np.ndarray:
        """Features of the clips whose words aren't in `vocabulary`."""
        return self.features[~np.isin(self.words, vocabulary.words)]


def threshold_for(scores: np.ndarray, false_accepts: float = 0.01) -> float:
    """The lowest threshold that accepts at most a share of the clips of other words.

    Arguments:
    - `scores`: known scores of these clips (n,).
    - `false_accepts`: the share, from 0 to 1 (default 0.01).

    Raises DataError without scores, or for another share.
    """
    if not 0 <= false_accepts <= 1:
        raise DataError(f"false_accepts must be a share from 0 to 1, not {false_accepts}.")
    if not len(scores):
        raise DataError("A threshold needs clips of other words: give some, or the threshold itself.")
    descending = np.sort(np.asarray(scores, np.float32))[::-1]
    rejected = descending[min(int(false_accepts * len(descending)), len(descending) - 1)]  # the highest of these
    return float(np.nextafter(rejected, np.float32(np.inf)))


def held_out_scores(vocabulary: Vocabulary, embedder: Embedder, learner: Learner | None = None) -> np.ndarray:
    """Known scores of enrolled clips, each by a spotter that was enrolled without it: float32 (n,).

    Every word's first clip is left out, then every word's second, and so on. Words with a single clip have no score.
    """
    position = np.zeros(len(vocabulary.labels), int)  # of a clip among those of its word; -1: the only one
    for label in range(len(vocabulary.words)):
        own = vocabulary.labels == label
        position[own] = np.arange(own.sum()) if own.sum() > 1 else -1
    scores = [np.empty(0, np.float32)]
    for number in range(position.max(initial=-1) + 1):
        out = position == number
        scores.append(vocabulary.take(~out).enrol(embedder, learner).known_score(vocabulary.features[out]))
    return np.concatenate(scores)
