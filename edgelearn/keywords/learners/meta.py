"""Starting points from which few steps go far: first-order MAML (Finn et al. 2017) and ANIL (Raghu et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from edgelearn.ops import SGD
from edgelearn.train import Model

from .base import check_labels
from .embedder import Embedder, Head, Weights
from .finetune import HEAD, FineTune, trained, with_head

# Of an episode: features and labels to learn from, and to be tested with.
Task = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class MAML(FineTune):
    """A few steps of plain gradient descent on the whole network, from a classifier of zeros and an embedder that
    `meta_train` has prepared for that."""

    name = "maml"
    part: str = "all"
    epochs: int = 5
    learning_rate: float = 0.05
    decays: bool = False
    momentum: float = 0.0
    rehearsal: float = 0.0

    def start(self, embedder, embeddings, labels, ways) -> Head:
        return zeros(embedder.size, ways)


@dataclass(frozen=True)
class ANIL(MAML):
    """MAML whose steps are those of the classifier alone: almost no inner loop."""

    name = "anil"
    part: str = "head"


def zeros(size: int, ways: int) -> Head:
    return Head(np.zeros((size, ways), np.float32), np.zeros(ways, np.float32))


def meta_train(
    learner: MAML,
    embedder: Embedder,
    tasks: Iterable[Task],
    learning_rate: float = 0.02,
    momentum: float = 0.9,
    say: Callable[[int, float], None] = lambda number, loss: None,
    seed: int = 0,
) -> Embedder:
    """For each of `tasks`: take `learner`'s steps on its support, and go down the gradient of its queries' loss that is
    found there, as if it were found at the start (first order). `say` gets the number and the queries' loss."""
    weights: Weights = dict(embedder.weights)
    speed = {name: np.zeros_like(weights[name]) for name in embedder.network.trainable}
    inner = outer = None
    for number, (features, labels, queries, answers) in enumerate(tasks):
        ways = check_labels(embedder, features, labels)
        if outer is None:
            inner, outer = (_model(embedder, ways, seed) for _ in range(2))
            inner.network.freeze().unfreeze(HEAD, *trained(embedder.network, learner.part))
        head = zeros(embedder.size, ways)
        inner.weights = weights | {f"{HEAD}/kernel": head.kernel, f"{HEAD}/bias": head.bias}
        inner.compile(SGD(learner.learning_rate))
        inner.fit(embedder.examples(features), labels, len(labels), learner.epochs)
        outer.weights = there = inner.weights
        outer.compile(SGD(1.0))  # a step of 1: what it takes off is the gradient
        loss = outer.fit(embedder.examples(queries), answers, len(answers)).history["loss"][0]
        for name in speed:
            speed[name] = momentum * speed[name] + (there[name] - outer.weights[name])
            weights[name] = weights[name] - learning_rate * speed[name]
        say(number, loss)
    return embedder.with_weights(weights, embedder.head)


def _model(embedder: Embedder, ways: int, seed: int) -> Model:
    network = with_head(embedder.network, ways)
    return Model(network, network.initialize(seed), seed=seed, share_with=embedder.model)
