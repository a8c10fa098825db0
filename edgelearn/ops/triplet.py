"""Triplet loss: an anchor nearer to an example of its own class than to one of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .emit import Answers, Control, Emitter
from .loss import Loss
from .tensor import Shape, Tensor

MINING = ("hard", "given")
DISTANCES = ("squared", "euclidean")


@dataclass(frozen=True)
class TripletLoss(Loss):
    """Triplet loss of embeddings: max(0, d(anchor, positive) - d(anchor, negative) + margin), a mean over anchors
    (Schroff et al. 2015, "FaceNet: a unified embedding for face recognition and clustering").

    Targets are class numbers, int (n,). Distances are those of the outputs as they are: for embeddings of length 1 end
    the network with a layer that scales them. The accuracy is the share of anchors whose positive is nearer than the
    negative.

    Arguments:
    - `margin`: difference of distances at which a triplet stops counting, at least 0 (default 0.2, as published).
    - `mining`: `"hard"` takes every example of a micro-batch as an anchor, with the farthest example of its class and
      the nearest of another one there ("batch hard", Hermans et al. 2017, "In defense of the triplet loss for person
      re-identification"); an anchor that lacks one has loss 0. So micro-batches need several examples of each class.
      `"given"` takes triplets as they stand: anchor, positive, negative, anchor, …, whose labels aren't read.
    - `distance`: `"squared"` Euclidean, as published (default), or `"euclidean"`.

    Raises PlanError for values out of range.
    """

    head: ClassVar[str] = ""

    margin: float = 0.2
    mining: str = "hard"
    distance: str = "squared"

    def __post_init__(self) -> None:
        if self.mining not in MINING or self.distance not in DISTANCES:
            raise PlanError(
                f"TripletLoss has a mining of {' or '.join(MINING)} and a distance of {' or '.join(DISTANCES)}, not "
                f"{self.mining!r} and {self.distance!r}."
            )
        if not self.margin >= 0:
            raise PlanError(f"The margin of TripletLoss is at least 0 (usual is 0.2), not {self.margin}.")

    @property
    def ordered(self) -> bool:  # type: ignore[override]
        return self.mining == "given"

    def fits(self, examples: int) -> bool:
        return not self.ordered or examples % 3 == 0

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 1:
            raise PlanError(f"TripletLoss takes embeddings (size,), but the network gives {shape}: add a Flatten.")
        if not self.fits(examples):
            raise PlanError(
                f"A micro-batch of {examples} examples is no whole number of triplets: give a multiple of 3."
            )

    def labels(self, outputs: int) -> range:
        return range(1 << 24)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, gradient, losses = len(outputs), np.zeros_like(outputs), np.zeros(len(outputs))
        for anchor in range(n):
            difference = outputs[anchor] - outputs
            d = np.square(difference).sum(-1) if self.distance == "squared" else np.linalg.norm(difference, axis=-1)
            pair = self._pair(anchor, d, targets)
            share = 3 if self.ordered else 1
            if pair is None or not (missing := d[pair[0]] - d[pair[1]] + self.margin) > 0:
                continue
            losses[anchor] = share * missing
            for other, sign in zip(pair, (share, -share), strict=True):
                slope = 2.0 if self.distance == "squared" else 1 / d[other] if d[other] else 0.0
                gradient[anchor] += sign * slope * difference[other]
                gradient[other] -= sign * slope * difference[other]
        return losses, gradient / n

    def _pair(self, anchor: int, distances: np.ndarray, targets: np.ndarray) -> tuple[int, int] | None:
        """The numbers of an anchor's positive and negative, or None."""
        if self.ordered:
            return (anchor + 1, anchor + 2) if anchor % 3 == 0 else None
        same = targets == targets[anchor]
        positive = same & (np.arange(len(targets)) != anchor)
        if not positive.any() or same.all():
            return None
        return int(np.where(positive, distances, -1).argmax()), int(np.where(same, np.inf, distances).argmin())

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        n = outputs.rows
        answers = Answers(e.tensor("losses", (1, n)), e.tensor("right", (1, n)))
        triplets = e.tensor("triplets", (n, 4))  # positive, negative, and the slopes of their distances
        macros = {"given": self.ordered, "squared": self.distance == "squared"}
        e.launch(
            "triplet.cl", "triplets", (n * e.traits.group,), outputs.read, control.targets.read, answers.losses.write,
            answers.right.write, triplets.write, n, outputs.channels, float(self.margin), whole=True, gradient=False,
            **macros,
        )  # fmt: skip
        if gradient is not None:
            e.launch(
                "triplet.cl", "triplet_gradient", (n, gradient.blocks), outputs.read, triplets.read,
                control.scalars.read, gradient.write, n,
            )  # fmt: skip
        return answers
