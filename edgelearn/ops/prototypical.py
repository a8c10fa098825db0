"""The loss of prototypical networks, with and without dummy prototypes. A micro-batch is an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .control import Answers, Control
from .emit import Emitter
from .loss import Loss
from .tensor import BLOCK, Shape, Tensor

DISTANCES = ("euclidean", "cosine")


@dataclass(frozen=True)
class Prototypical(Loss):
    """Loss of prototypical networks (Snell et al. 2017, "Prototypical networks for few-shot learning"), with dummy
    prototypes for unknown classes (Kim et al. 2022, "Dummy prototypical networks for few-shot open-set keyword
    spotting").

    A micro-batch is an episode: first the support, `num_classes` x `shots` examples, class after class, whose labels
    are not read; then queries with labels 0 to `num_classes` - 1. A prototype is the mean of a class's embeddings. The
    loss of a query is the cross-entropy of the softmax over its similarities to the prototypes; that of the micro-batch
    is the mean over its queries.

    With dummy prototypes the network gives (1 + dummy_prototypes) times the size of an embedding: behind the embedding
    the features of dummies. These are averaged over the clips of a class, then maximised over the classes, so that
    neither number nor order of the classes matters. Queries of no class have label `num_classes`. Two things differ
    from the paper: the learned maps (its g1 and W_g) are layers before mean and maximum, and the probabilities of
    several dummies are added up, where the paper draws one with Gumbel noise.

    Arguments:
    - `num_classes`, `shots`: classes of an episode (2 or more), support examples of each (1 or more).
    - `distance`: "euclidean" (similarity: minus the squared distance) or "cosine".
    - `scale`: factor of similarities (default 1).
    - `dummy_prototypes`: their number (default 0).
    - `dummy_temperature`: similarities to dummies are scaled by scale / dummy_temperature (the paper's gamma; default
    3).
    - `open_weight`: weight of queries of no class (the paper's lambda; default 1).

    Raises PlanError for values out of range.
    """

    head: ClassVar[str] = ""
    ordered: ClassVar[bool] = True

    num_classes: int
    shots: int
    distance: str = "euclidean"
    scale: float = 1.0
    dummy_prototypes: int = 0
    dummy_temperature: float = 3.0
    open_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.num_classes < 2 or self.shots < 1 or self.dummy_prototypes < 0:
            raise PlanError(
                f"Expected num_classes >= 2, shots >= 1 and dummy_prototypes >= 0, got {self.num_classes}, "
                f"{self.shots} and {self.dummy_prototypes}."
            )
        if self.distance not in DISTANCES or not min(self.scale, self.dummy_temperature, self.open_weight) > 0:
            raise PlanError(
                f"Expected a distance of {' or '.join(DISTANCES)}, and scale, dummy_temperature and open_weight above "
                f"0, got {self.distance!r}, {self.scale}, {self.dummy_temperature} and {self.open_weight}."
            )

    @property
    def support(self) -> int:
        """The number of support examples of an episode."""
        return self.num_classes * self.shots

    def fits(self, examples: int) -> bool:
        return examples > self.support

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 1:
            raise PlanError(f"Prototypical takes embeddings (size,), but the network gives {shape}: add a Flatten.")
        (outputs,), dummies = shape, self.dummy_prototypes
        if not self.fits(examples):
            raise PlanError(
                f"A micro-batch of {examples} is no episode: {self.num_classes} classes of {self.shots} shots are "
                f"{self.support} examples, and queries come behind them. Make micro-batches whole episodes."
            )
        if outputs % (1 + dummies):
            raise PlanError(
                f"{dummies} dummy prototypes need {1 + dummies} times an embedding's size as outputs, but the network "
                f"gives {outputs}: add a Dense layer that gives {dummies} times as much, and concatenate."
            )

    def labels(self, outputs: int) -> range:
        return range(self.num_classes + (self.dummy_prototypes > 0))

    def _share(self, examples: int) -> float:
        """The weight of a query, so that the mean over all examples is the mean over queries."""
        return examples / (examples - self.support)

    def prototypes(self, support: np.ndarray) -> np.ndarray:
        """(classes + dummies, size) from a support (classes * shots, outputs)."""
        size = support.shape[1] // (1 + self.dummy_prototypes)
        means = support.reshape(self.num_classes, self.shots, -1).mean(1)
        return np.concatenate([means[:, :size], means[:, size:].max(0).reshape(self.dummy_prototypes, size)])

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, size = len(outputs), outputs.shape[1] // (1 + self.dummy_prototypes)
        p, x, label = self.prototypes(outputs[: self.support]), outputs[self.support :, :size], targets[self.support :]
        scale = np.where(np.arange(len(p)) < self.num_classes, self.scale, self.scale / self.dummy_temperature)
        if self.distance == "cosine":
            lengths, long = np.linalg.norm(x, axis=1)[:, None], np.linalg.norm(p, axis=1)
            cosine = x @ p.T / lengths / long
            logits = scale * cosine
            along, of_query, of_prototype = scale / lengths / long, -logits / lengths**2, -logits / long**2
        else:
            logits = -scale * np.square(x[:, None] - p).sum(-1)
            along = np.broadcast_to(2 * scale, logits.shape)
            of_query = of_prototype = -along
        unknown = label[:, None] >= self.num_classes
        right = np.where(unknown, np.arange(len(p)) >= self.num_classes, np.arange(len(p)) == label[:, None])
        weight = self._share(n) * np.where(unknown, self.open_weight, 1.0)
        log_p = logits - _log_sum(logits)
        log_right = _log_sum(np.where(right, log_p, -np.inf))
        slope = (np.exp(log_p) - np.where(right, np.exp(log_p - log_right), 0)) * weight / n

        gradient = np.zeros_like(outputs)
        gradient[self.support :, :size] = slope * along @ p + (slope * of_query).sum(1)[:, None] * x
        dp = (slope * along).T @ x + (slope * of_prototype).sum(0)[:, None] * p
        means = outputs[: self.support].reshape(self.num_classes, self.shots, -1).mean(1)
        dmeans = np.zeros_like(means)
        dmeans[:, :size] = dp[: self.num_classes]
        dummy = np.arange(size, means.shape[1])
        dmeans[means[:, size:].argmax(0), dummy] = dp[self.num_classes :].ravel()
        gradient[: self.support] = np.repeat(dmeans, self.shots, axis=0) / self.shots
        return np.concatenate([np.zeros(self.support), (-weight * log_right)[:, 0]]), gradient

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        n, size, group = outputs.rows, outputs.channels // (1 + self.dummy_prototypes), e.traits.group
        count = self.num_classes + self.dummy_prototypes
        episode = {"ways": self.num_classes, "shots": self.shots, "dummies": self.dummy_prototypes}
        p = e.tensor("prototypes", (count, size))
        slopes = e.tensor("slopes", (n - self.support, 2 * count + 1))
        answers = Answers(e.tensor("losses", (1, n)), e.tensor("right", (1, n)))
        e.launch(
            "prototypical.cl", "prototypes", (count * size,), outputs.read, p.write, n, size, whole=True, **episode
        )
        settings = self.scale, self.scale / self.dummy_temperature, self.open_weight, self._share(n)
        more = [control.scalars.read, slopes.write] if gradient is not None else []
        e.launch(
            "prototypical.cl", "prototypical", (n * group,), outputs.read, p.read, control.targets.read,
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
