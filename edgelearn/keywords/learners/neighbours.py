"""A shared classifier, corrected by the nearest of a user's own clips."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import DataError

from .base import Learner
from .classifiers import Classifier, NearClips


@dataclass(frozen=True)
class Neighbours(Learner):
    """Raise a word's score, as given by the embedder's own classifier, by the similarity of a clip to the user's clips.

    The similarity s is measured by `Embedder.metric`; the score rises by `weight` times the mean of
    exp(sharpness (s - 1)) over the nearest clips of the word. Sounds unlike all enrolled clips keep their scores.
    Nothing is trained (Zhang et al. 2022, "Tip-Adapter: Training-free adaption of CLIP for few-shot classification"; a
    cache as in Grave et al. 2017, "Improving neural language models with a continuous cache").

    Arguments:
    - `weight`: largest increase of a score (default 16).
    - `sharpness`: how fast it falls with dissimilarity (default 3).
    - `nearest`: number of clips of a word that count (default 2).

    Raises DataError for settings below 0, or an embedder without a classifier or a background.
    """

    name = "neighbours"
    weight: float = 16.0
    sharpness: float = 3.0
    nearest: int = 2

    def __post_init__(self) -> None:
        if min(self.weight, self.sharpness) < 0 or self.nearest < 1:
            raise DataError(
                f"weight and sharpness have to be at least 0 and nearest at least 1, not {self.weight}, "
                f"{self.sharpness} and {self.nearest}."
            )

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0) -> Classifier:
        if embedder.head is None or embedder.background is None:
            raise DataError(
                "'neighbours' corrects a classifier of the words, and measures similarity by clips of other people: "
                "give an embedder with its head and a background, or learn by 'nearest-mean'."
            )
        clips = embedder.metric(embeddings)
        return NearClips(embedder.head, embedder.metric, clips, labels, self.weight, self.sharpness, self.nearest)
