"""Fine-tuning: a linear classifier on the embedding, and a chosen part of the network."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, Loss
from edgelearn.train import CosineDecay, Model

from .base import Learner, Spotter, check_labels
from .classifiers import Classifier, Linear, unit
from .embedder import Embedder, Head
from .prototypes import class_means

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
    - `learning_rate`, `momentum`: of SGD; the rate falls to 0 along a cosine (default 0.01, 0.9).
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
    def keeps_embeddings(self) -> bool:
        return self.part == "head"

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0) -> Classifier:
        """Train the classifier alone, on embeddings. Raises DataError unless `part` is "head"."""
        if self.part != "head":
            raise DataError(f"Fine-tuning {self.part!r} changes the embeddings: call enrol, with features of clips.")
        network = Network("classifier", (embedder.size,))
        network.add(HEAD, Dense(num_classes))
        x = self._rehearsed(embedder, embeddings, labels, seed, lambda: embedder.background_embeddings)
        head = self.start(embedder, embeddings, labels, num_classes)
        return Linear(*self._fit(network, head, {}, embedder, *x, seed))

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        if self.part == "head":
            return super().enrol(embedder, features, labels, unlabelled, seed)
        num_classes, labels = check_labels(embedder, features, labels), np.asarray(labels)
        return self.train(
            embedder, self.start(embedder, embedder.embed(features), labels, num_classes), features, labels, seed
        )

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
        network = with_head(embedder.network, head.num_classes)
        network.freeze().unfreeze(HEAD, *trainable_part(embedder.network, self.part))
        x, y = self._rehearsed(embedder, features, labels, seed, lambda: embedder.required_background.features)
        weights = dict(embedder.weights)
        classifier = Linear(*self._fit(network, head, weights, embedder, embedder.examples(x), y, seed, loss))
        return Spotter(embedder.with_weights(weights), classifier)

    def _rehearsed(
        self, embedder: Embedder, x: np.ndarray, labels: np.ndarray, seed: int, background: Callable[[], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Examples and labels of all updates in order: each update has the user's clips, then clips drawn from the
        background."""
        count = round(len(labels) * self.rehearsal / (1 - self.rehearsal)) if embedder.background else 0
        if not count:
            return np.tile(x, (self.epochs, *(1,) * (x.ndim - 1))), np.tile(labels, self.epochs)
        rng, others = np.random.default_rng([seed, _REHEARSAL]), background()
        other_labels = embedder.required_background.labels
        draws = [rng.integers(len(others), size=count) for _ in range(self.epochs)]
        return (
            np.concatenate([part for draw in draws for part in (x, others[draw])]),
            np.concatenate([part for draw in draws for part in (labels, other_labels[draw])]),
        )

    def _fit(self, network, head, weights, embedder, x, y, seed, loss=None) -> tuple[np.ndarray, np.ndarray]:
        """Train `network`, updating `weights` of the embedding in place. Returns the head's kernel and bias."""
        head_weights = {f"{HEAD}/kernel": head.kernel, f"{HEAD}/bias": head.bias}
        model = Model(network, weights | head_weights, seed=seed, share_with=embedder.model)
        model.compile(SGD(CosineDecay(self.learning_rate, self.epochs), momentum=self.momentum), loss=loss)
        cache = "fp32" if self.part == "last-block" else None
        model.fit(x, y, len(y) // self.epochs, shuffle=False, cache=cache, verbose=0)
        weights |= {name: model.weights[name] for name in weights}
        return model.weights[f"{HEAD}/kernel"], model.weights[f"{HEAD}/bias"]


def with_head(network: Network, num_classes: int) -> Network:
    """A copy of an embedding network, followed by a linear classifier."""
    extended = Network.from_json(network.to_json())
    extended.add(HEAD, Dense(num_classes))
    return extended


def trainable_part(network: Network, part: str) -> list[str]:
    """Layers, or parameters, of `network` that belong to `part`, one of PARTS."""
    layers = list(dict.fromkeys(parameter.layer for parameter in network.parameters.values()))
    if part == "head":
        return []
    if part == "batchnorm":
        return [name for name in network.parameters if name.endswith(("/gamma", "/beta"))]
    if part == "last-block":
        blocks = [_BLOCK.match(layer) for layer in layers]
        names = [block[0] for block in blocks if block]
        if names:
            return layers[next(i for i, block in enumerate(blocks) if block and block[0] == names[-1]) :]
        kernels = [parameter.layer for parameter in network.parameters.values() if parameter.role == "kernel"]
        return layers[layers.index(kernels[-1]) :]
    return layers
