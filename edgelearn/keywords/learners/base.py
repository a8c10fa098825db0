"""How a keyword model learns from few clips: one interface for every way to do it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from edgelearn.errors import DataError

from .classifiers import Classifier
from .embedder import Embedder


@dataclass(frozen=True, eq=False)
class Spotter:
    """What an enrolment gives: an embedder (the one that was enrolled with, or an adapted one) and a classifier."""

    embedder: Embedder
    classifier: Classifier

    @property
    def ways(self) -> int:
        """How many words it knows."""
        return self.classifier.ways

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Log-probabilities or negative distances: float32 (n, ways) of features (n, frames, bands)."""
        return self.classifier.scores(self.embedder.embed(features))

    def knownness(self, features: np.ndarray) -> np.ndarray:
        """How sure it is that each clip is one of the enrolled words: float32 (n,), higher is surer."""
        return self.classifier.knownness(self.embedder.embed(features))


@dataclass(frozen=True)
class Learner:
    """Base of the learners. One of your own is a frozen dataclass, whose fields are its settings, with a `name` and:

    - where the embeddings stay as they are, `classify`;
    - where the network itself learns, `enrol`.

    >>> @dataclass(frozen=True)
    ... class Median(Learner):
    ...     name = "median"
    ...     def classify(self, embedder, embeddings, labels, ways, unlabelled=None, seed=0):
    ...         return Prototypes(np.stack([np.median(embeddings[labels == k], 0) for k in range(ways)]))
    """

    registry: ClassVar[dict[str, type[Learner]]] = {}
    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            Learner.registry[cls.name] = cls

    def classify(
        self,
        embedder: Embedder,
        embeddings: np.ndarray,
        labels: np.ndarray,
        ways: int,
        unlabelled: np.ndarray | None = None,
        seed: int = 0,
    ) -> Classifier:
        """Learn from embeddings (n, d) by `embedder`, with int labels (n,) in 0..ways-1, and from those (m, d)
        without."""
        raise NotImplementedError(f"{type(self).__name__} doesn't say how it learns: override classify or enrol.")

    @property
    def keeps_embeddings(self) -> bool:
        """Whether `classify` is all that it does: then clips are embedded once for many enrolments."""
        return type(self).enrol is Learner.enrol

    def enrol(
        self,
        embedder: Embedder,
        features: np.ndarray,
        labels: np.ndarray,
        unlabelled: np.ndarray | None = None,
        seed: int = 0,
    ) -> Spotter:
        """Learn from clips: features (n, frames, bands) with int labels (n,), those of `embedder.head` if it has one,
        else 0..ways-1, and features (m, frames, bands) without labels.

        Raises DataError when labels don't fit the clips, or a word has none.
        """
        ways = check_labels(embedder, features, labels)
        more = None if unlabelled is None else embedder.embed(unlabelled)
        x, labels = embedder.embed(features), np.asarray(labels)
        return Spotter(embedder, self.classify(embedder, x, labels, ways, more, seed))

    def to_dict(self) -> dict:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"learner": self.name} | {k: v.to_dict() if isinstance(v, Learner) else v for k, v in own.items()}

    @staticmethod
    def from_dict(found: dict) -> Learner:
        """Raises DataError for what `to_dict` doesn't write."""
        settings = {k: Learner.from_dict(v) if isinstance(v, dict) else v for k, v in found.items()}
        kind = Learner.named(settings.pop("learner", ""))
        try:
            return kind(**settings)
        except TypeError as error:
            raise DataError(f"These settings are not of the learner {kind.name!r}: {error}.") from None

    @staticmethod
    def named(name: str) -> type[Learner]:
        """Raises DataError for a name that no learner has."""
        if name not in Learner.registry:
            raise DataError(f"There is no learner {name!r}. There are: {', '.join(sorted(Learner.registry))}.")
        return Learner.registry[name]


def check_labels(embedder: Embedder, features: np.ndarray, labels: np.ndarray) -> int:
    """How many words there are. Raises DataError when labels don't fit the clips, or a word has none."""
    labels = np.asarray(labels)
    if labels.shape != (len(features),) or not len(labels) or labels.dtype.kind not in "iu":
        raise DataError(
            f"An enrolment needs clips and an int label for each: got {len(features)} clips and labels "
            f"{labels.dtype} of shape {labels.shape}."
        )
    ways = embedder.head.ways if embedder.head else int(labels.max()) + 1
    if labels.min() < 0 or labels.max() >= ways:
        raise DataError(f"Labels are 0 to {ways - 1} here, but run from {labels.min()} to {labels.max()}.")
    missing = np.setdiff1d(np.arange(ways), labels)
    if missing.size and embedder.head is None:
        raise DataError(f"Word {missing[0]} of {ways} has no clip. Record one, or number the words without gaps.")
    return ways
