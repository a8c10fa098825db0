"""Embedder: a network that maps clips to vectors, close together for clips of the same word."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from edgelearn.data.audio.features import BC_RESNET, FrontEnd
from edgelearn.device import Device
from edgelearn.errors import DataError, ShapeError
from edgelearn.graph import Network
from edgelearn.train import Model

from .classifiers import Linear
from .metric import Metric, within_words

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
        changed = self._copy()
        changed.model, changed.head = Model(self.network, weights, share_with=self.model), self._checked(head)
        return changed

    def with_background(self, background: Background | None) -> Embedder:
        """A copy with another background."""
        changed = self._copy()
        changed.background = background
        return changed

    def _copy(self) -> Embedder:
        copied = copy(self)
        for cached in ("background_embeddings", "metric"):
            copied.__dict__.pop(cached, None)
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
    def metric(self) -> Metric:
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
        return self.model.predict(self.examples(features), self._batch_size(len(features)))

    def _batch_size(self, count: int) -> int | None:
        if self.model.device.is_gpu:
            return _GPU_BATCH if count >= _GPU_BATCH else None
        return _SMALL_BATCH if count <= _SMALL_COUNT else None
