"""Learners: methods to learn words from few clips, by an embedder and a classifier of its embeddings."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from edgelearn.data.features import BC_RESNET, FrontEnd
from edgelearn.device import Device
from edgelearn.errors import DataError, ShapeError
from edgelearn.extensions import check_name
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, Loss, MinimumEntropy
from edgelearn.ops.registry import enter
from edgelearn.train import CosineDecay, Model

DISTANCES = ("euclidean", "cosine")


@dataclass(frozen=True, eq=False)
class Classifier:
    """Base class: a frozen dataclass of arrays and settings."""

    @property
    def num_classes(self) -> int:
        """Number of words."""
        raise NotImplementedError

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        """Log-probabilities or negative distances, float32 (n, num_classes), of embeddings (n, d). The word with the
        highest score is the prediction."""
        raise NotImplementedError

    def known_score(self, embeddings: np.ndarray) -> np.ndarray:
        """Score that each clip is one of the words, whichever: float32 (n,), higher is more certain."""
        return self.scores(embeddings).max(1)


@dataclass(frozen=True, eq=False)
class Prototypes(Classifier):
    """Nearest prototype (Snell et al. 2017).

    Arguments:
    - `prototypes`: float (num_classes, d).
    - `distance`: `"euclidean"` scores by negative squared distance (default), `"cosine"` by the cosine.

    Raises DataError for another distance.
    """

    prototypes: np.ndarray
    distance: str = "euclidean"

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            raise DataError(f"distance is {' or '.join(DISTANCES)}, not {self.distance!r}.")

    @property
    def num_classes(self):
        return len(self.prototypes)

    def scores(self, embeddings):
        return similarity(np.asarray(embeddings), self.prototypes, self.distance)


@dataclass(frozen=True, eq=False)
class WithDummyPrototypes(Classifier):
    """Nearest prototype, with dummy prototypes that stand for all other words (Kim et al. 2022).

    Scores are log-probabilities of the softmax over both kinds. The known score is the log-ratio of the best word to
    all dummies: with distant dummies it ranks clips like `Prototypes`.

    Arguments:
    - `prototypes`: float (num_classes, d).
    - `dummies`: dummy prototypes, float (m, d).
    - `distance`, `scale`, `dummy_temperature`: as in training, see `ops.Prototypical`.
    """

    prototypes: np.ndarray
    dummies: np.ndarray
    distance: str = "cosine"
    scale: float = 1.0
    dummy_temperature: float = 3.0

    @property
    def num_classes(self):
        return len(self.prototypes)

    def scores(self, embeddings):
        known, dummies = self._logits(embeddings)
        return log_softmax(np.concatenate([known, dummies], 1))[:, : self.num_classes]

    def known_score(self, embeddings):
        known, dummies = self._logits(embeddings)
        return known.max(1) - np.logaddexp.reduce(dummies, 1)

    def _logits(self, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = np.asarray(embeddings)
        known, dummies = (similarity(x, p, self.distance) for p in (self.prototypes, self.dummies))
        return self.scale * known, self.scale / self.dummy_temperature * dummies


@dataclass(frozen=True, eq=False)
class Linear(Classifier):
    """Softmax of x @ kernel + bias. `kernel`: (d, num_classes). `bias`: (num_classes,)."""

    kernel: np.ndarray
    bias: np.ndarray

    @property
    def num_classes(self):
        return len(self.bias)

    def scores(self, embeddings):
        return log_softmax(np.asarray(embeddings) @ self.kernel + self.bias)


@dataclass(frozen=True, eq=False)
class NearClips(Classifier):
    """A linear classifier whose scores are raised for words with similar enrolled clips: see `learners.Neighbours`.

    Arguments:
    - `base`: the linear classifier.
    - `metric`: maps embeddings (n, d) to unit vectors whose products are similarities.
    - `clips`, `labels`: enrolled clips, mapped by `metric` (m, d), and their words (m,).
    - `weight`, `sharpness`, `nearest`: settings of the learner.
    """

    base: Linear
    metric: Callable[[np.ndarray], np.ndarray]
    clips: np.ndarray
    labels: np.ndarray
    weight: float
    sharpness: float
    nearest: int

    @property
    def num_classes(self):
        return self.base.num_classes

    def scores(self, embeddings):
        scores = self.base.scores(embeddings)
        similar = np.exp(self.sharpness * (self.metric(np.asarray(embeddings)) @ self.clips.T - 1))
        for word in np.unique(self.labels):
            nearest = np.sort(similar[:, self.labels == word], 1)[:, -self.nearest :]
            scores[:, word] += self.weight * nearest.mean(1)
        return log_softmax(scores)


def similarity(x: np.ndarray, prototypes: np.ndarray, distance: str) -> np.ndarray:
    """Cosines or negative squared distances, float32 (n, m), of embeddings (n, d) and prototypes (m, d)."""
    if distance == "cosine":
        return (unit(x) @ unit(prototypes).T).astype(np.float32)
    difference = x[:, None, :] - prototypes
    return -np.einsum("nmd,nmd->nm", difference, difference).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(np.float32)


SHRINKAGE = 0.1


@dataclass(frozen=True, eq=False)
class LearnedMetric:
    """Map embeddings (n, d) to unit vectors (n, d) whose products are similarities: normalised (x - mean) @ matrix."""

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        return unit((embeddings - self.mean) @ self.matrix).astype(np.float32)


def within_words(embeddings: np.ndarray, labels: np.ndarray, shrinkage: float = SHRINKAGE) -> LearnedMetric:
    """Within-class covariance normalisation (WCCN: Hatch, Kajarekar and Stolcke 2006, "Within-class covariance
    normalization for SVM-based speaker recognition").

    Directions in which clips of one word differ most, by speaker or by chance, count least: the covariance around the
    words' means becomes the identity.

    Arguments:
    - `embeddings`: (n, d); each value is first scaled to a standard deviation of 1.
    - `labels`: word of each clip (n,).
    - `shrinkage`: share of the identity that is mixed into the covariance, so that directions with hardly any variance
      don't dominate (default 0.1).
    """
    mean = embeddings.mean(0, dtype=np.float64)
    scale = 1 / np.maximum(embeddings.std(0, dtype=np.float64), 1e-6)
    x = (embeddings - mean) * scale
    words, word = np.unique(labels, return_inverse=True)
    deviation = x - np.stack([x[word == k].mean(0) for k in range(len(words))])[word]
    covariance = (1 - shrinkage) * deviation.T @ deviation / len(x) + shrinkage * np.eye(x.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    return LearnedMetric(mean, scale[:, None] * directions / np.sqrt(variances))


Weights = dict[str, np.ndarray]
_GPU_BATCH = 256  # few launches
_SMALL_COUNT, _SMALL_BATCH = 50, 4  # an enrolment's few clips in small batches: little memory


@dataclass(frozen=True, eq=False)
class Head(Linear):
    """The classifier that an embedder was trained with, before any enrolment."""


@dataclass(frozen=True, eq=False)
class Background:
    """Clips of other people that come with an embedder: fine-tuning rehearses them, and a metric is learned from them.

    Arguments:
    - `features`: (n, frames, bands).
    - `labels`: classes of the embedder's head, int (n,).
    - `non_keywords`: features (m, frames, bands) of other words, to set thresholds by (default none).
    """

    features: np.ndarray
    labels: np.ndarray
    non_keywords: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))


@dataclass(frozen=True, eq=False)
class DummyGenerator:
    """Generates dummy prototypes from embeddings by two dense layers with a ReLU between them (see `ops.Prototypical`).

    Arguments:
    - `first_kernel`, `first_bias`: (d, h) and (h,).
    - `second_kernel`, `second_bias`: (h, dummies · d) and (dummies · d,).
    - `distance`, `scale`, `dummy_temperature`: settings of the loss.
    """

    first_kernel: np.ndarray
    first_bias: np.ndarray
    second_kernel: np.ndarray
    second_bias: np.ndarray
    distance: str = "cosine"
    scale: float = 1.0
    dummy_temperature: float = 3.0

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        """Embeddings (n, d) to dummies (n, dummies, d)."""
        hidden = np.maximum(embeddings @ self.first_kernel + self.first_bias, 0)
        dummies = hidden @ self.second_kernel + self.second_bias
        return dummies.reshape(len(embeddings), -1, embeddings.shape[1])


class Embedder:
    """A network with weights, on a device, that maps features of clips to embeddings.

    Arguments:
    - `network`: its input is (frames, bands, 1), as in DS-CNN, or (bands, frames, 1), as in BC-ResNet; its output is an
      embedding (d,).
    - `weights`: float32 arrays by name.
    - `front_end`: computes features (n, frames, bands) of clips (default: BC-ResNet's log-mel features).
    - `seconds`: length of a clip (default 1).
    - `head`: the classifier that the network was trained with, if users enrol its words: learners then start from it.
    - `device`: part of a device's name, or a `Device` (default: chosen automatically).
    - `dummies`: generator of dummy prototypes, if one was trained with the network.
    - `background`: clips of other people.

    Raises ShapeError for a network that takes other features or doesn't end in an embedding, FormatError for weights
    that don't fit.
    """

    def __init__(
        self,
        network: Network,
        weights: Weights,
        front_end: FrontEnd = BC_RESNET,
        seconds: float = 1.0,
        head: Head | None = None,
        device: str | Device | None = None,
        dummies: DummyGenerator | None = None,
        background: Background | None = None,
    ) -> None:
        self.network, self.front_end, self.seconds = network, front_end, seconds
        self.dummies, self.background = dummies, background
        frames, bands = front_end.shape(round(front_end.rate * seconds))
        if network.input_shape not in ((frames, bands, 1), (bands, frames, 1)) or len(network.output.shape) != 1:
            raise ShapeError(
                f"'{network.name}' takes {network.input_shape} and gives {network.output.shape}, but an embedder of "
                f"{frames} frames of {bands} bands takes ({frames}, {bands}, 1) or ({bands}, {frames}, 1) and gives "
                f"(d,). Build the network for these features and without its classifier."
            )
        self.bands_first = network.input_shape[0] == bands
        self.head = self._checked(head)
        self.model = Model(network, weights, device)

    @property
    def weights(self) -> Weights:
        return self.model.weights

    @property
    def size(self) -> int:
        """Number of values of an embedding."""
        return self.network.output.shape[0]

    def with_weights(self, weights: Weights, head: Head | None = None) -> Embedder:
        """A copy with other weights and head."""
        return self._copy(model=Model(self.network, weights, share_with=self.model), head=self._checked(head))

    def with_background(self, background: Background | None) -> Embedder:
        """A copy with another background."""
        return self._copy(background=background)

    def _copy(self, **changed: Any) -> Embedder:
        copied = copy(self)
        for cached in ("background_embeddings", "metric"):
            copied.__dict__.pop(cached, None)
        copied.__dict__ |= changed
        return copied

    def _checked(self, head: Head | None) -> Head | None:
        if head is not None and head.kernel.shape != (self.size, head.num_classes):
            raise ShapeError(
                f"A head of shape {head.kernel.shape} doesn't fit embeddings of {self.size} values: give the one that "
                f"the network was trained with."
            )
        return head

    @property
    def required_background(self) -> Background:
        """The background. Raises DataError if there is none."""
        if self.background is None:
            raise DataError("This embedder has no background: give one by with_background.")
        return self.background

    @cached_property
    def background_embeddings(self) -> np.ndarray:
        """Embeddings (n, d) of the background's clips, computed once."""
        return self.embed(self.required_background.features)

    @cached_property
    def metric(self) -> LearnedMetric:
        """Similarity of embeddings, learned from the background."""
        return within_words(self.background_embeddings, self.required_background.labels)

    def features(self, clips: np.ndarray) -> np.ndarray:
        """Features, float32 (n, frames, bands), of clips, float (n, samples) at the front end's rate."""
        return self.front_end(clips)

    def examples(self, features: np.ndarray) -> np.ndarray:
        """Features (n, frames, bands) in the shape of the network's input. Raises ShapeError for features of another
        front end."""
        features = np.asarray(features, np.float32)
        frames, bands = self.network.input_shape[:2][:: -1 if self.bands_first else 1]
        if features.ndim != 3 or features.shape[1:] != (frames, bands):
            raise ShapeError(
                f"'{self.network.name}' takes features of shape (n, {frames}, {bands}), not {features.shape}. Compute "
                f"them with the embedder's own front end."
            )
        return (features.transpose(0, 2, 1) if self.bands_first else features)[..., None]

    def embed(self, features: np.ndarray) -> np.ndarray:
        """Embeddings, float32 (n, d), of features (n, frames, bands)."""
        if not len(features):
            return np.empty((0, self.size), np.float32)
        size = None
        if self.model.device.is_gpu:
            size = _GPU_BATCH if len(features) >= _GPU_BATCH else None
        elif len(features) <= _SMALL_COUNT:
            size = _SMALL_BATCH
        return self.model.predict(self.examples(features), size)


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


@dataclass(frozen=True)
class NearestMean(Learner):
    """Each word is the mean of its clips' embeddings; a clip is classified as the word with the nearest mean.

    Arguments:
    - `distance`: `"cosine"`, to the mean of embeddings of length 1 (default), or `"euclidean"`, squared, as in
      prototypical networks (Snell et al. 2017).
    """

    name = "nearest-mean"
    distance: str = "cosine"

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        return Prototypes(class_means(embeddings, labels, num_classes, self.distance), self.distance)


def class_means(embeddings: np.ndarray, labels: np.ndarray, num_classes: int, distance: str) -> np.ndarray:
    """Mean embedding of each class, float32 (num_classes, d); for "cosine", of embeddings of length 1."""
    x = unit(embeddings) if distance == "cosine" else embeddings
    return np.stack([x[labels == label].mean(0) for label in range(num_classes)]).astype(np.float32)


@dataclass(frozen=True)
class DummyPrototypes(Learner):
    """D-ProtoNets (Kim et al. 2022): a prototype for each word, and dummy prototypes generated from the enrolled clips
    by layers that were trained with the embedder (see `ops.Prototypical`).

    Arguments:
    - `dummy_temperature`: divides the scores of dummies (default: the value used in training).

    Raises DataError for an embedder that was trained without dummy prototypes.
    """

    name = "dummy-prototypes"
    dummy_temperature: float | None = None

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        generator = embedder.dummies
        if generator is None:
            raise DataError(
                "This embedder has no dummy prototypes: it was trained without them. Train one with the method "
                "'dummy-prototypes', or learn by 'nearest-mean'."
            )
        temperature = self.dummy_temperature or generator.dummy_temperature
        prototypes = class_means(embeddings, labels, num_classes, "euclidean")
        dummies = class_means(generator(embeddings), labels, num_classes, "euclidean").max(0)
        return WithDummyPrototypes(prototypes, dummies, generator.distance, generator.scale, temperature)


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

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        if embedder.head is None or embedder.background is None:
            raise DataError(
                "'neighbours' corrects a classifier of the words, and measures similarity by clips of other people: "
                "give an embedder with its head and a background, or learn by 'nearest-mean'."
            )
        clips = embedder.metric(embeddings)
        return NearClips(embedder.head, embedder.metric, clips, labels, self.weight, self.sharpness, self.nearest)


PARTS = ("head", "last-block", "batchnorm", "all")
HEAD = "keywords_head"
_REHEARSAL = 36  # keeps this random stream of a seed apart from others
_BLOCK = re.compile(r"(stage\d+_)?block\d+")


@dataclass(frozen=True)
class FineTune(Learner):
    """Train a softmax classifier, and with it a part of the network. BatchNorm's statistics stay as they are.

    The classifier starts as the embedder's own; without one, from the words' mean directions, which classify like
    nearest-mean by cosine (Qi et al. 2018, "Low-shot learning with imprinted weights").

    Arguments:
    - `part`: what is trained with the classifier: `"head"`, nothing else (default); `"last-block"`; `"batchnorm"`,
      scale and bias of every BatchNorm; `"all"`.
    - `epochs`: passes over the clips, one update each (default 20).
    - `learning_rate`, `momentum`: settings of SGD; the rate falls to 0 along a cosine (default 0.01, 0.9).
    - `sharpness`: initial length of a word's weights, for embeddings of length 1 (default 10).
    - `rehearsal`: share of an update's clips that come from the embedder's background, if it has one (default 0.5;
      Robins 1995, "Catastrophic forgetting, rehearsal and pseudorehearsal").

    Raises DataError for another part, no epochs, or a share outside [0, 1).
    """

    name = "fine-tune"
    part: str = "head"
    epochs: int = 20
    learning_rate: float = 0.01
    momentum: float = 0.9
    sharpness: float = 10.0
    rehearsal: float = 0.5

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise DataError(f"part must be one of {', '.join(PARTS)}, not {self.part!r}.")
        if self.epochs < 1:
            raise DataError(f"epochs must be at least 1, not {self.epochs}.")
        if not 0 <= self.rehearsal < 1:
            raise DataError(f"rehearsal must be at least 0 and below 1, not {self.rehearsal}.")

    @property
    def keeps_embeddings(self):
        return self.part == "head"

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        """Train the classifier alone, on embeddings. Raises DataError unless `part` is "head"."""
        if self.part != "head":
            raise DataError(f"Fine-tuning {self.part!r} changes the embeddings: call enrol, with features of clips.")
        network = Network("classifier", (embedder.size,))
        network.add(HEAD, Dense(num_classes))
        head = self.start(embedder, embeddings, labels, num_classes)
        return self._fit(
            embedder, network, {}, head, embeddings, labels, lambda: embedder.background_embeddings, seed
        )  # fmt: skip

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0):
        if self.part == "head":
            return super().enrol(embedder, features, labels, unlabelled, seed)
        num_classes, labels = check_labels(embedder, features, labels), np.asarray(labels)
        head = self.start(embedder, embedder.embed(features), labels, num_classes)
        return self.train(embedder, head, features, labels, seed)

    def start(self, embedder: Embedder, embeddings: np.ndarray, labels: np.ndarray, num_classes: int) -> Head:
        """The initial classifier: the embedder's own, or one of the words' mean directions."""
        if embedder.head is not None:
            return embedder.head
        length = np.linalg.norm(embeddings, axis=1).mean()
        kernel = unit(class_means(embeddings, labels, num_classes, "cosine")).T * self.sharpness / length
        return Head(kernel.astype(np.float32), np.zeros(num_classes, np.float32))

    def train(
        self, embedder: Embedder, head: Head, features: np.ndarray, labels: np.ndarray, seed: int,
        loss: Loss | None = None,
    ) -> Spotter:  # fmt: skip
        """Fine-tune `embedder` followed by `head`."""
        network, weights = Network.from_json(embedder.network.to_json()), dict(embedder.weights)
        network.add(HEAD, Dense(head.num_classes))
        network.freeze().unfreeze(HEAD, *trainable_part(embedder.network, self.part))
        background = lambda: embedder.required_background.features  # noqa: E731
        classifier = self._fit(embedder, network, weights, head, features, labels, background, seed, loss)
        return Spotter(embedder.with_weights(weights), classifier)

    def _fit(
        self, embedder: Embedder, network: Network, weights: Weights, head: Head, x: np.ndarray, y: np.ndarray,
        background: Callable[[], np.ndarray], seed: int, loss: Loss | None = None,
    ) -> Linear:  # fmt: skip
        """Train `network` and return its last layer. Each update has the user's clips `x`, features or embeddings, then
        clips drawn from the background. `weights` of the embedding are updated in place."""
        clips, rng = len(y), np.random.default_rng([seed, _REHEARSAL])
        count = round(clips * self.rehearsal / (1 - self.rehearsal)) if embedder.background else 0
        if count:
            others, other_labels = background(), embedder.required_background.labels
            draws = [rng.integers(len(others), size=count) for _ in range(self.epochs)]
            x = np.concatenate([part for draw in draws for part in (x, others[draw])])
            y = np.concatenate([part for draw in draws for part in (y, other_labels[draw])])
        else:
            x, y = np.tile(x, (self.epochs, *(1,) * (x.ndim - 1))), np.tile(y, self.epochs)
        kernel, bias = f"{HEAD}/kernel", f"{HEAD}/bias"
        model = Model(network, weights | {kernel: head.kernel, bias: head.bias}, seed=seed, share_with=embedder.model)
        model.compile(SGD(CosineDecay(self.learning_rate, self.epochs), momentum=self.momentum), loss=loss)
        cache = "fp32" if self.part == "last-block" else None
        examples = x if x.ndim == 2 else embedder.examples(x)
        model.fit(examples, y, clips + count, shuffle=False, cache=cache, verbose=0)
        weights |= {name: model.weights[name] for name in weights}
        return Linear(model.weights[kernel], model.weights[bias])


def trainable_part(network: Network, part: str) -> list[str]:
    """Layers, or parameters, of `network` that belong to `part`, one of PARTS."""
    if part == "batchnorm":
        return [name for name in network.parameters if name.endswith(("/gamma", "/beta"))]
    parameters = network.parameters.values()
    layers = list(dict.fromkeys(parameter.layer for parameter in parameters))
    if part != "last-block":
        return [] if part == "head" else layers
    names = [block[0] for layer in layers if (block := _BLOCK.match(layer))]
    if not names:
        return layers[layers.index([each.layer for each in parameters if each.role == "kernel"][-1]) :]
    return layers[next(i for i, each in enumerate(layers) if (b := _BLOCK.match(each)) and b[0] == names[-1]) :]


@dataclass(frozen=True)
class PseudoLabels(Learner):
    """Learn from labelled clips, label the unlabelled ones with high confidence, and learn from all of these (Lee 2013,
    "Pseudo-label").

    Arguments:
    - `base`: the learner used twice (default: nearest mean).
    - `bound`: least probability at which a clip gets a label (default 0.9).
    - `temperature`: multiplies the base's scores before the softmax that gives the probability (default 10).

    Raises DataError for a bound outside [0, 1].
    """

    name = "pseudo-labels"
    base: Learner = field(default_factory=NearestMean)
    bound: float = 0.9
    temperature: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.bound <= 1:
            raise DataError(f"bound must be a probability, from 0 to 1, not {self.bound}.")

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0):
        first = self.base.enrol(embedder, features, labels, None, seed)
        if unlabelled is None or not len(unlabelled):
            return first
        log_p = log_softmax(self.temperature * first.scores(unlabelled))
        confident = np.exp(log_p.max(1)) >= self.bound
        features = np.concatenate([features, unlabelled[confident]])
        return self.base.enrol(embedder, features, np.concatenate([labels, log_p.argmax(1)[confident]]), None, seed)


@dataclass(frozen=True)
class EntropyMinimisation(Learner):
    """Fine-tune, and minimise the entropy of predictions for unlabelled clips (Grandvalet and Bengio 2004; with
    BatchNorm's scale and bias, TENT by Wang et al. 2021).

    Arguments:
    - `base`: the fine-tuning (default: of BatchNorm's scale and bias).
    - `weight`: weight of the entropy in the loss (default 0.3).
    """

    name = "entropy"
    base: FineTune = field(default_factory=lambda: FineTune("batchnorm"))
    weight: float = 0.3

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0):
        num_classes = check_labels(embedder, features, labels)
        labels = np.asarray(labels)
        head = self.base.start(embedder, embedder.embed(features), labels, num_classes)
        if unlabelled is not None:
            features = np.concatenate([features, unlabelled])
            labels = np.concatenate([labels, np.full(len(unlabelled), -1)])
        return self.base.train(embedder, head, features, labels, seed, MinimumEntropy(self.weight))


@dataclass(frozen=True)
class BatchNormStatistics(Learner):
    """Adapt BatchNorm's moving statistics to all of the user's clips, then learn from the labelled ones (Schneider et
    al. 2020, "Improving robustness against common corruptions by covariate shift adaptation").

    Arguments:
    - `base`: the learner (default: nearest mean).
    - `steps`: updates of the statistics, with the layers' momentum (default 2).
    """

    name = "batchnorm-statistics"
    base: Learner = field(default_factory=NearestMean)
    steps: int = 2

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0):
        clips = features if unlabelled is None else np.concatenate([features, unlabelled])
        return self.base.enrol(self.adapt(embedder, clips, seed), features, labels, None, seed)

    def adapt(self, embedder: Embedder, features: np.ndarray, seed: int) -> Embedder:
        """A copy of the embedder with adapted statistics: training with learning rate 0 changes nothing else."""
        model = Model(embedder.network, embedder.weights, seed=seed, share_with=embedder.model)
        model.compile(SGD(0.0), batchnorm="batch")
        labels = np.zeros(len(features), int)
        model.fit(embedder.examples(features), labels, len(features), self.steps, verbose=0)
        return embedder.with_weights(model.weights, embedder.head)


def supervised(learner: Learner) -> Learner:
    """The baseline of a semi-supervised learner: the same learner without unlabelled clips. Others are returned."""
    return getattr(learner, "base", learner)
