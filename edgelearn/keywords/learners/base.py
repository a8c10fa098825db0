"""The interface of learners: how words are learned from few clips."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from edgelearn.errors import DataError
from edgelearn.extensions import check_name, enter

from .classifiers import Classifier
from .embedder import Embedder


@dataclass(frozen=True, eq=False)
class Spotter:
    """The result of an enrolment: an `embedder` (the one given, or an adapted copy) and a `classifier`."""

    embedder: Embedder
    classifier: Classifier

    @property
    def num_classes(self) -> int:
        """Number of words."""
        return self.classifier.num_classes

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Log-probabilities or negative distances, float32 (n, num_classes), of features (n, frames, bands)."""
        return self.classifier.scores(self.embedder.embed(features))

    def known_score(self, features: np.ndarray) -> np.ndarray:
        """Score that each clip is one of the enrolled words: float32 (n,), higher is more certain."""
        return self.classifier.known_score(self.embedder.embed(features))


@dataclass(frozen=True)
class Learner:
    """Base class of learners.

    A learner is a frozen dataclass with its settings as fields and a `name` (default `MODULE:CLASS` for what inherits
    from a learner with a name). Override `classify` if the embeddings stay as they are, `enrol` if the network itself
    is trained.

    >>> @dataclass(frozen=True)
    ... class Median(Learner):
    ...     name = "median"
    ...     def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
    ...         return Prototypes(np.stack([np.median(embeddings[labels == k], 0) for k in range(num_classes)]))
    """

    registry: ClassVar[dict[str, type[Learner]]] = {}
    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name and "name" not in vars(cls):  # not its parent's, which stands in records
            cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if cls.name:
            enter(Learner.registry, cls.name, cls, "the learner")

    def classify(
        self, embedder: Embedder, embeddings: np.ndarray, labels: np.ndarray, num_classes: int,
        unlabelled: np.ndarray | None = None, seed: int = 0,
    ) -> Classifier:  # fmt: skip
        """Learn a classifier from embeddings.

        Arguments:
        - `embedder`: made the embeddings.
        - `embeddings`, `labels`: enrolled clips (n, d) and their words, int (n,) in 0..num_classes-1.
        - `unlabelled`: embeddings (m, d) of more clips by the user.
        - `seed`: draws whatever is random.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither classify nor enrol.")

    @property
    def keeps_embeddings(self) -> bool:
        """True if the learner overrides `classify` alone: clips are then embedded once for many enrolments."""
        return type(self).enrol is Learner.enrol

    def enrol(
        self, embedder: Embedder, features: np.ndarray, labels: np.ndarray, unlabelled: np.ndarray | None = None,
        seed: int = 0,
    ) -> Spotter:  # fmt: skip
        """Learn words from clips.

        Arguments:
        - `embedder`: the network.
        - `features`: enrolled clips (n, frames, bands).
        - `labels`: their words, int (n,): classes of `embedder.head` if there is one, else 0..num_classes-1.
        - `unlabelled`: more clips by the user (m, frames, bands).
        - `seed`: draws whatever is random.

        Raises DataError if labels don't fit the clips, or a word has no clip.
        """
        num_classes = check_labels(embedder, features, labels)
        more = None if unlabelled is None else embedder.embed(unlabelled)
        x, labels = embedder.embed(features), np.asarray(labels)
        return Spotter(embedder, self.classify(embedder, x, labels, num_classes, more, seed))

    def to_dict(self) -> dict:
        """Name and settings, for JSON."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"learner": self.name} | {k: v.to_dict() if isinstance(v, Learner) else v for k, v in settings.items()}

    @staticmethod
    def named(name: str) -> type[Learner]:
        """The learner class called `name`. Raises UsageError if there is none."""
        check_name(name, sorted(Learner.registry), "learner")
        return Learner.registry[name]


def check_labels(embedder: Embedder, features: np.ndarray, labels: np.ndarray) -> int:
    """Number of classes. Raises DataError if labels don't fit the clips, or a word has no clip."""
    labels = np.asarray(labels)
    if labels.shape != (len(features),) or not len(labels) or labels.dtype.kind not in "iu":
        raise DataError(
            f"An enrolment needs clips and an int label for each: got {len(features)} clips and labels "
            f"{labels.dtype} of shape {labels.shape}."
        )
    num_classes = embedder.head.num_classes if embedder.head else int(labels.max()) + 1
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(f"Labels must be 0 to {num_classes - 1} here, but range from {labels.min()} to {labels.max()}.")
    missing = np.setdiff1d(np.arange(num_classes), labels)
    if missing.size and embedder.head is None:
        raise DataError(
            f"Word {missing[0]} of {num_classes} has no clip. Record one, or number the words without gaps."
        )
    return num_classes
