"""The classifier that everybody has, and on top of it what a user's own clips say."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import DataError

from .base import Learner
from .classifiers import Classifier, NearClips


@dataclass(frozen=True)
class Neighbours(Learner):
    """A word's score is that of the embedder's own classifier, raised by up to `weight` as a clip is like the `nearest`
    of the user's clips of it: by their mean of exp(-sharpness (1 - likeness)), likeness being that of Metric, by the
    embedder's background. So words are told apart better where the user has shown how they sound, and what is unlike
    all of that stays as it was. Nothing is trained (Zhang et al. 2022, "Tip-Adapter: Training-free adaption of CLIP for
    few-shot classification"; a cache as in Grave et al. 2017, "Improving neural language models with a continuous
    cache").

    Raises DataError for settings below 0 or an embedder that lacks a classifier or a background.
    """

    name = "neighbours"
    weight: float = 16.0
    sharpness: float = 3.0
    nearest: int = 2

    def __post_init__(self) -> None:
        if min(self.weight, self.sharpness) < 0 or self.nearest < 1:
            raise DataError(
                f"weight and sharpness are at least 0 and nearest is at least 1, not {self.weight}, {self.sharpness} "
                f"and {self.nearest}."
            )

    def classify(self, embedder, embeddings, labels, ways, unlabelled=None, seed=0) -> Classifier:
        if embedder.head is None or embedder.background is None:
            raise DataError(
                "Neighbours add to a classifier of the words, and need clips of other people to measure likeness: give "
                "an embedder with its head and a background, or learn by 'nearest-mean'."
            )
        clips = embedder.metric(embeddings)
        return NearClips(embedder.head, embedder.metric, clips, labels, self.weight, self.sharpness, self.nearest)
