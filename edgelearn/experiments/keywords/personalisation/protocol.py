"""The personalisation protocol: which clips are tested, and when a clip is accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Protocol:
    """Cross-validated personalisation test for each user.

    Arguments:
    - `words`: labels of the keywords; clips with other labels count as non-keywords.
    - `min_clips`: a word is tested for a user who has at least this many clips of it (default 5).
    - `folds`: number of parts a word's clips are divided into; each part is tested after enrolling the others
      (default 5).
    - `threshold`: minimum score, relative to `against`, at which a clip is accepted (default 0).
    - `against`: `"others"`, the best score among the classifier's non-keyword classes (default), or `"none"`, the raw
      score, for a classifier without such classes.
    - `seed`: draws the half of the other speakers used as background, if the embedder has none.
    """

    words: tuple[int, ...]
    min_clips: int = 5
    folds: int = 5
    threshold: float = 0.0
    against: str = "others"
    seed: int = 0

    def margins(self, scores: np.ndarray) -> np.ndarray:
        """Best keyword score of each clip, relative to `against`: (n,) of scores (n, num_classes)."""
        best = scores[:, self.words].max(1)
        if self.against == "none":
            return best
        return best - np.delete(scores, self.words, 1).max(1)

    def predict(self, scores: np.ndarray) -> np.ndarray:
        """The keyword of each clip, or -1 where none is accepted: (n,) of scores (n, num_classes)."""
        best = np.array(self.words)[scores[:, self.words].argmax(1)]
        return np.where(self.margins(scores) >= self.threshold, best, -1)

    def with_accepts(self, scores: np.ndarray, count: int) -> Protocol:
        """A copy with the lowest threshold that accepts at most `count` of the clips with `scores`."""
        descending = np.sort(self.margins(scores))[::-1]
        if count >= len(descending):
            return replace(self, threshold=-np.inf)
        return replace(self, threshold=float(np.nextafter(descending[count], np.inf)))
