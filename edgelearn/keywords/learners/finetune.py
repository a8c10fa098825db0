"""Fine-tuning: a linear classifier behind the embedding, and as much of the network as is wanted."""

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
    """Train a softmax classifier of the embeddings, and with it nothing else ("head"), the network's "last-block",
    scale and bias of every "batchnorm", or "all". BatchNorm keeps its statistics. The classifier begins as the
    embedder's own; without one, as the words' mean directions, which recognise like nearest-mean's cosine (Qi et al.
    2018, "Low-shot learning with imprinted weights").

    epochs: passes over the clips, each one update. learning_rate, momentum: of SGD; the rate falls to 0 along a cosine
        where it `decays`.
    sharpness: length of a word's weights at the start, where embeddings have a length of 1.
    rehearsal: the share of an update's clips that is of the embedder's background, where it has one (Robins 1995,
        "Catastrophic forgetting, rehearsal and pseudorehearsal").

    Raises DataError for another part, no epochs, or a share that isn't at least 0 and below 1.
    """

    name = "fine-tune"
    part: str = "head"
    epochs: int = 20
    learning_rate: float = 0.01
    decays: bool = True
    momentum: float = 0.9
    sharpness: float = 10.0
    rehearsal: float = 0.5

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise DataError(f"What is fine-tuned is one of {', '.join(PARTS)}, not {self.part!r}.")
        if self.epochs < 1:
            raise DataError(f"epochs are at least 1, not {self.epochs}.")
        if not 0 <= self.rehearsal < 1:
            raise DataError(f"rehearsal is a share, at least 0 and below 1, not {self.rehearsal}.")

    @property
    def keeps_embeddings(self) -> bool:
        return self.part == "head"

    def classify(self, embedder, embeddings, labels, ways, unlabelled=None, seed=0) -> Classifier:
        """Train the classifier alone, on embeddings. Raises DataError where that isn't all that is to be trained."""
        if self.part != "head":
            raise DataError(f"Fine-tuning {self.part!r} changes the embeddings: enrol with clips' features.")
        network = Network("classifier", (embedder.size,))
        network.add(HEAD, Dense(ways))
        x = self._rehearsed(embedder, embeddings, labels, seed, lambda: embedder.background_embeddings)
        head = self.start(embedder, embeddings, labels, ways)
        return Linear(*self._fit(network, head, {}, embedder, *x, seed))

    def enrol(self, embedder, features, labels, unlabelled=None, seed=0) -> Spotter:
        if self.part == "head":
            return super().enrol(embedder, features, labels, unlabelled, seed)
        ways, labels = check_labels(embedder, features, labels), np.asarray(labels)
        return self.train(
            embedder, self.start(embedder, embedder.embed(features), labels, ways), features, labels, seed
        )

    def start(self, embedder: Embedder, embeddings: np.ndarray, labels: np.ndarray, ways: int) -> Head:
        """The embedder's own classifier, or one by the directions of the words' means."""
        if embedder.head is not None:
            return embedder.head
        length = np.linalg.norm(embeddings, axis=1).mean()
        kernel = unit(class_means(embeddings, labels, ways, "cosine")).T * self.sharpness / length
        return Head(kernel.astype(np.float32), np.zeros(ways, np.float32))

    def train(
        self, embedder: Embedder, head: Head, features: np.ndarray, labels: np.ndarray, seed: int,
        loss: Loss | None = None,
    ) -> Spotter:  # fmt: skip
        """Fine-tune `embedder` with `head` behind it."""
        network = with_head(embedder.network, head.ways)
        network.freeze().unfreeze(HEAD, *trained(embedder.network, self.part))
        x, y = self._rehearsed(embedder, features, labels, seed, lambda: embedder.background.features)
        weights = dict(embedder.weights)
        classifier = Linear(*self._fit(network, head, weights, embedder, embedder.examples(x), y, seed, loss))
        return Spotter(embedder.with_weights(weights), classifier)

    def _rehearsed(
        self, embedder: Embedder, x: np.ndarray, labels: np.ndarray, seed: int, background: Callable[[], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Examples and labels of all updates, one after the other: the user's, and behind them others of the background
        each time."""
        count = round(len(labels) * self.rehearsal / (1 - self.rehearsal)) if embedder.background else 0
        if not count:
            return np.tile(x, (self.epochs, *(1,) * (x.ndim - 1))), np.tile(labels, self.epochs)
        rng, others, answers = np.random.default_rng([seed, _REHEARSAL]), background(), embedder.background.labels
        drawn = [rng.integers(len(others), size=count) for _ in range(self.epochs)]
        return (
            np.concatenate([part for some in drawn for part in (x, others[some])]),
            np.concatenate([part for some in drawn for part in (labels, answers[some])]),
        )

    def _fit(self, network, head, weights, embedder, x, y, seed, loss=None) -> tuple[np.ndarray, np.ndarray]:
        """Train `network`, changing `weights` of the embedding in place; returns the head's kernel and bias."""
        own = {f"{HEAD}/kernel": head.kernel, f"{HEAD}/bias": head.bias}
        model = Model(network, weights | own, seed=seed, share_with=embedder.model)
        rate = CosineDecay(self.learning_rate, self.epochs) if self.decays else self.learning_rate
        model.compile(SGD(rate, momentum=self.momentum), loss=loss)
        cache = "fp32" if self.part == "last-block" else None
        model.fit(x, y, len(y) // self.epochs, shuffle=False, cache=cache)
        weights |= {name: model.weights[name] for name in weights}
        return model.weights[f"{HEAD}/kernel"], model.weights[f"{HEAD}/bias"]


def with_head(network: Network, ways: int) -> Network:
    """A copy of an embedding's network with a linear classifier."""
    found = Network.from_json(network.to_json())
    found.add(HEAD, Dense(ways))
    return found


def trained(network: Network, part: str) -> list[str]:
    """Patterns of the parameters that a part has, without the head."""
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
