"""The loss of prototypical networks, with and without dummy prototypes. A micro-batch is an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import BLOCK, Tensor

DISTANCES = ("euclidean", "cosine")


@dataclass(frozen=True)
class Prototypical(Loss):
    """Snell et al. 2017, "Prototypical networks for few-shot learning". The first `ways` x `shots` examples of a
    micro-batch are its support, way after way; the others are queries, with labels 0..ways-1 (those of the support
    aren't read). A prototype is the mean of a way's embeddings. A query's loss is the cross-entropy of the softmax over
    its similarities to them: -`scale` times the squared "euclidean" distance, or `scale` times the "cosine". The loss
    of a micro-batch is the mean over its queries.

    `dummies` more prototypes stand for what is none of the ways, whose label is `ways` (Kim et al. 2022, "Dummy
    prototypical networks for few-shot open-set keyword spotting"). The network gives (1 + dummies) times the size of an
    embedding: behind it what dummies are made of, the mean over a way's clips and of that the largest over the ways, so
    that neither the number nor the order of the ways matters. Their scale is `scale` / `relief` (the paper's gamma,
    which is 3 there), and queries that are none of the ways count `open_weight` times (its lambda).

    Two things differ from the paper: what learns (its g1 and W_g) is layers before the mean and the largest, and of
    several dummies the probabilities are added up, where the paper draws one with Gumbel noise.

    Raises PlanError for settings that can't be.
    """

    takes_logits: ClassVar[bool] = False
    ordered: ClassVar[bool] = True

    ways: int
    shots: int
    distance: str = "euclidean"
    scale: float = 1.0
    dummies: int = 0
    relief: float = 3.0
    open_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.ways < 2 or self.shots < 1 or self.dummies < 0:
            raise PlanError(
                f"An episode has 2 ways or more, 1 shot or more and dummies or none, not {self.ways}, {self.shots} and "
                f"{self.dummies}."
            )
        if self.distance not in DISTANCES or not min(self.scale, self.relief, self.open_weight) > 0:
            raise PlanError(
                f"distance is {' or '.join(map(repr, DISTANCES))}, and scale, relief and open_weight are above 0, not "
                f"{self.distance!r}, {self.scale}, {self.relief} and {self.open_weight}."
            )

    @property
    def support(self) -> int:
        """The number of support examples of an episode."""
        return self.ways * self.shots

    def fits(self, examples: int) -> bool:
        return examples > self.support

    def check(self, outputs: int, examples: int) -> None:
        if not self.fits(examples):
            raise PlanError(
                f"A micro-batch of {examples} is no episode: {self.ways} ways of {self.shots} shots are {self.support} "
                f"examples, and queries come behind them. Make micro-batches whole episodes."
            )
        if outputs % (1 + self.dummies):
            raise PlanError(
                f"{self.dummies} dummies need {1 + self.dummies} times an embedding's size as outputs, but the network "
                f"gives {outputs}: add a Dense layer that gives {self.dummies} times as much, and concatenate."
            )

    def labels(self, outputs: int) -> range:
        return range(self.ways + (self.dummies > 0))

    def _share(self, examples: int) -> float:
        """The weight of a query, so that the mean over all examples is the mean over queries."""
        return examples / (examples - self.support)

    def prototypes(self, support: np.ndarray) -> np.ndarray:
        """(ways + dummies, size) of a support (ways * shots, outputs)."""
        size = support.shape[1] // (1 + self.dummies)
        means = support.reshape(self.ways, self.shots, -1).mean(1)
        return np.concatenate([means[:, :size], means[:, size:].max(0).reshape(self.dummies, size)])

    def reference(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, size = len(outputs), outputs.shape[1] // (1 + self.dummies)
        p, x, label = self.prototypes(outputs[: self.support]), outputs[self.support :, :size], labels[self.support :]
        scale = np.where(np.arange(len(p)) < self.ways, self.scale, self.scale / self.relief)
        if self.distance == "cosine":
            lengths, long = np.linalg.norm(x, axis=1)[:, None], np.linalg.norm(p, axis=1)
            cosine = x @ p.T / lengths / long
            logits = scale * cosine
            along, of_query, of_prototype = scale / lengths / long, -logits / lengths**2, -logits / long**2
        else:
            logits = -scale * np.square(x[:, None] - p).sum(-1)
            along = np.broadcast_to(2 * scale, logits.shape)
            of_query = of_prototype = -along
        unknown = label[:, None] >= self.ways
        right = np.where(unknown, np.arange(len(p)) >= self.ways, np.arange(len(p)) == label[:, None])
        weight = self._share(n) * np.where(unknown, self.open_weight, 1.0)
        log_p = logits - _log_sum(logits)
        log_right = _log_sum(np.where(right, log_p, -np.inf))
        slope = (np.exp(log_p) - np.where(right, np.exp(log_p - log_right), 0)) * weight / n

        gradient = np.zeros_like(outputs)
        gradient[self.support :, :size] = slope * along @ p + (slope * of_query).sum(1)[:, None] * x
        dp = (slope * along).T @ x + (slope * of_prototype).sum(0)[:, None] * p
        means = outputs[: self.support].reshape(self.ways, self.shots, -1).mean(1)
        dmeans = np.zeros_like(means)
        dmeans[:, :size] = dp[: self.ways]
        dummy = np.arange(size, means.shape[1])
        dmeans[means[:, size:].argmax(0), dummy] = dp[self.ways :].ravel()
        gradient[: self.support] = np.repeat(dmeans, self.shots, axis=0) / self.shots
        return np.concatenate([np.zeros(self.support), (-weight * log_right)[:, 0]]), gradient

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        n, size, group = outputs.rows, outputs.channels // (1 + self.dummies), e.traits.group
        count = self.ways + self.dummies
        episode = {"ways": self.ways, "shots": self.shots, "dummies": self.dummies}
        p = e.tensor("prototypes", (count, size))
        slopes = e.tensor("slopes", (n - self.support, 2 * count + 1))
        answers = Answers(e.tensor("losses", (1, n)), e.tensor("right", (1, n)))
        e.launch(
            "prototypical.cl", "prototypes", (count * size,), outputs.read, p.write, n, size, whole=True, **episode
        )
        settings = self.scale, self.scale / self.relief, self.open_weight, self._share(n)
        more = [control.scalars.read, slopes.write] if gradient is not None else []
        e.launch(
            "prototypical.cl", "prototypical", (n * group,), outputs.read, p.read, control.labels.read,
            answers.losses.write, answers.right.write, n, size, *map(float, settings), *more,
            whole=True, gradient=gradient is not None, cosine=self.distance == "cosine", **episode,
        )  # fmt: skip
        if gradient is not None:
            padded = gradient.blocks * BLOCK
            e.launch(
                "prototypical.cl", "prototypical_gradient", (n * padded,), outputs.read, p.read, slopes.read,
                gradient.write, n, size, padded, whole=True, **episode,
            )  # fmt: skip
        return answers


def _log_sum(logits: np.ndarray) -> np.ndarray:
    top = logits.max(1, keepdims=True)
    return top + np.log(np.exp(logits - top).sum(1, keepdims=True))
