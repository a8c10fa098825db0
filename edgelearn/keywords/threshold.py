"""From which score on a clip is taken for one of the enrolled words."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import DataError

from .learners import Embedder, Learner
from .vocabulary import Vocabulary


def threshold_for(unknown: np.ndarray, false_accepts: float = 0.01) -> float:
    """The lowest threshold that accepts no more than a share `false_accepts` of clips of other words, whose scores are
    `unknown` (n,). Raises DataError when there are none, or for a share that can't be."""
    if not 0 <= false_accepts <= 1:
        raise DataError(f"The share of clips that may be accepted is from 0 to 1, not {false_accepts}.")
    if not len(unknown):
        raise DataError("A threshold needs clips of other words: give some, or say the threshold.")
    falling = np.sort(np.asarray(unknown, np.float32))[::-1]
    highest = falling[min(int(false_accepts * len(falling)), len(falling) - 1)]  # that is not accepted
    return float(np.nextafter(highest, np.float32(np.inf)))


def held_out_scores(vocabulary: Vocabulary, embedder: Embedder, learner: Learner | None = None) -> np.ndarray:
    """How well enrolled clips are known to a spotter that learned from the others: every word's first clip is left
    out, then every word's second, and so on. float32 (n,), none of words that have a single clip."""
    turn = np.zeros(len(vocabulary.labels), int)
    for label in range(len(vocabulary.words)):
        own = vocabulary.labels == label
        turn[own] = np.arange(own.sum()) if own.sum() > 1 else -1
    found = [np.empty(0, np.float32)]
    for number in range(turn.max(initial=-1) + 1):
        out = turn == number
        found.append(_without(vocabulary, out).enrol(embedder, learner).knownness(vocabulary.features[out]))
    return np.concatenate(found)


def _without(vocabulary: Vocabulary, out: np.ndarray) -> Vocabulary:
    return Vocabulary(
        vocabulary.front_end, vocabulary.seconds, vocabulary.words, vocabulary.features[~out], vocabulary.labels[~out]
    )
