"""A network that turns clips into embeddings: points that lie close together where clips sound the same word."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgelearn.data.audio.features import BC_RESNET, FrontEnd
from edgelearn.device import Device
from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.train import Model

from .classifiers import Linear
from .metric import Metric, within_words

Weights = dict[str, np.ndarray]
_ON_GPU = 256  # clips at a time: few launches
_FEW, _OF_FEW = 50, 4  # an enrolment's clips, so many at a time: little memory


@dataclass(frozen=True, eq=False)
class Head(Linear):
    """The classifier that an embedder was trained with, before any user came."""


@dataclass(frozen=True, eq=False)
class Background:
    """Clips of other people that come with an embedder, so that it doesn't forget what they sound like: features
    (n, frames, bands), and int labels (n,) as its head has them. others: features of clips of no word, to set a
    threshold by."""

    features: np.ndarray
    labels: np.ndarray
    others: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class DummyGenerator:
    """Two dense layers with a rectifier between them, of which dummy prototypes are made (see ops.Prototypical):
    kernels (d, h) and (h, dummies * d), biases (h,) and (dummies * d,). `scale` and `relief` are those of the loss."""

    first_kernel: np.ndarray
    first_bias: np.ndarray
    second_kernel: np.ndarray
    second_bias: np.ndarray
    distance: str = "cosine"
    scale: float = 1.0
    relief: float = 3.0

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        """(n, d) to (n, dummies, d)."""
        hidden = np.maximum(embeddings @ self.first_kernel + self.first_bias, 0)
        found = hidden @ self.second_kernel + self.second_bias
        return found.reshape(len(embeddings), -1, embeddings.shape[1])


class Embedder:
    """`network`, whose output is an embedding (d,), with `weights` on `device` (chosen where None).

    front_end: what makes features (n, frames, bands) of clips; the network's input is (frames, bands, 1), as DS-CNN has
        it, or (bands, frames, 1), as BC-ResNet has it.
    seconds: the length of a clip.
    head: the classifier that the network was trained with, where its words are those that a user enrols: learners then
        start from it.
    dummies: what makes dummy prototypes, where it was trained with the network.
    background: clips that fine-tuning rehearses beside the user's.

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
        self.head = self._fitting(head)
        self.model = Model(network, weights, device)

    @property
    def weights(self) -> Weights:
        return self.model.weights

    @property
    def size(self) -> int:
        """How many values an embedding has."""
        return self.network.output.shape[0]

    def with_weights(self, weights: Weights, head: Head | None = None) -> Embedder:
        """The same network with other weights."""
        found = self._copy()
        found.model, found.head = Model(self.network, weights, share_with=self.model), self._fitting(head)
        return found

    def with_background(self, background: Background | None) -> Embedder:
        """The same, rehearsing other clips."""
        found = self._copy()
        found.background = background
        return found

    def _copy(self) -> Embedder:
        found = copy(self)
        for of_the_background in ("background_embeddings", "metric"):
            found.__dict__.pop(of_the_background, None)
        return found

    def _fitting(self, head: Head | None) -> Head | None:
        if head is not None and head.kernel.shape != (self.size, head.ways):
            raise ShapeError(
                f"A head of shape {head.kernel.shape} doesn't fit embeddings of {self.size} values: give the one that "
                f"the network was trained with."
            )
        return head

    @cached_property
    def background_embeddings(self) -> np.ndarray:
        """Those of the background's clips (n, d), computed once."""
        return self.embed(self.background.features)

    @cached_property
    def metric(self) -> Metric:
        """Likeness of embeddings, learned from the background."""
        return within_words(self.background_embeddings, self.background.labels)

    def features(self, clips: np.ndarray) -> np.ndarray:
        """Clips float (n, samples) as float32 (n, frames, bands)."""
        return self.front_end(clips)

    def examples(self, features: np.ndarray) -> np.ndarray:
        """Features (n, frames, bands) as the network takes them. Raises ShapeError for features of other settings."""
        features = np.asarray(features, np.float32)
        frames, bands = self.network.input_shape[:2][:: -1 if self.bands_first else 1]
        if features.ndim != 3 or features.shape[1:] != (frames, bands):
            raise ShapeError(
                f"'{self.network.name}' takes features of shape (n, {frames}, {bands}), not {features.shape}. Compute "
                f"them with the embedder's own front end."
            )
        return (features.transpose(0, 2, 1) if self.bands_first else features)[..., None]

    def embed(self, features: np.ndarray) -> np.ndarray:
        """Features (n, frames, bands) to embeddings: float32 (n, d)."""
        if not len(features):
            return np.empty((0, self.size), np.float32)
        return self.model.predict(self.examples(features), self._at_once(len(features)))

    def _at_once(self, count: int) -> int | None:
        if self.model.device.is_gpu:
            return _ON_GPU if count >= _ON_GPU else None
        return _OF_FEW if count <= _FEW else None
