"""Connectionist temporal classification: a sequence of labels from frames whose alignment isn't known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .base import is_count
from .emit import Answers, Control, Emitter
from .loss import Loss
from .tensor import Shape, Tensor

PADDING = -1


@dataclass(frozen=True)
class CTC(Loss):
    """Connectionist temporal classification: minus the logarithm of the probability of the labels, a sum over all their
    alignments with the frames (Graves et al. 2006, "Connectionist temporal classification").

    Outputs are (n, frames, classes), logits or after a Softmax at the network's end, which belongs to the loss; one of
    the classes is the blank. Targets are int (n, up to `frames` labels), padded with -1. The loss of a mini-batch is
    the mean over its examples. Forward and backward pass run on the device; they hold frames x (2 labels + 1) floats
    for each example of a micro-batch.

    Arguments:
    - `blank`: number of the blank's class (default 0, as in TensorFlow and PyTorch).
    - `max_labels`: most labels of an example, for less memory (default None: as many as there are frames).

    Raises PlanError for a negative blank or a max_labels below 1.
    """

    accuracy: ClassVar[str] = ""

    blank: int = 0
    max_labels: int | None = None

    def __post_init__(self) -> None:
        if not (
            isinstance(self.blank, int) and self.blank >= 0 and (self.max_labels is None or is_count(self.max_labels))
        ):
            raise PlanError(
                f"CTC has a blank of 0 or more and max_labels of 1 or more, not {self.blank!r} and {self.max_labels!r}."
            )

    def check(self, shape: Shape, examples: int) -> None:
        if len(shape) != 2 or not self.blank < shape[1]:
            raise PlanError(
                f"CTC takes outputs (frames, classes) with the blank {self.blank} among the classes, but the network "
                f"gives {shape}."
            )

    def labels(self, outputs: int) -> range:
        return range(PADDING, outputs)

    def arranged(self, labels: np.ndarray, shape: Shape) -> np.ndarray:
        frames, most = shape[0], self._most(shape[0])
        if labels.ndim != 2:
            return labels  # refused by its shape
        held = labels >= 0
        counts = held.sum(1)
        places = np.arange(labels.shape[1]) < counts[:, None]
        if odd := np.flatnonzero((held != places).any(1) | (labels == self.blank).any(1)).tolist():
            raise PlanError(
                f"CTC takes sequences of labels padded with {PADDING} at their end, without the blank {self.blank}, "
                f"but example {odd[0]} has {labels[odd[0]].tolist()}."
            )
        repeats = ((labels[:, 1:] == labels[:, :-1]) & held[:, 1:]).sum(1)
        if odd := np.flatnonzero((counts > most) | (counts + repeats > frames)).tolist():
            number = odd[0]
            raise PlanError(
                f"Example {number} has {counts[number]} labels, {repeats[number]} of them repeated, each of which "
                f"needs a blank before it: they take {counts[number] + repeats[number]} frames, and there are "
                f"{frames}, for up to {most} labels."
            )
        whole = np.full((len(labels), frames), PADDING, np.int64)
        width = min(frames, labels.shape[1])
        whole[:, :width] = labels[:, :width]
        return whole

    def _most(self, frames: int) -> int:
        return min(frames, self.max_labels or frames)

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(loss of each example, gradient of their mean), for outputs (n, frames, classes) and targets (n, labels)."""
        top = outputs - outputs.max(-1, keepdims=True)
        log_p = top - np.log(np.exp(top).sum(-1, keepdims=True))
        losses, gradient = np.zeros(len(outputs)), np.exp(log_p)
        for number, (own, labels) in enumerate(zip(log_p, targets, strict=True)):
            states = self._states(labels)
            emitted = own[:, states]
            ahead, behind = (
                _passes(emitted, self._skips(states)),
                _passes(emitted[::-1, ::-1], self._skips(states[::-1])),
            )
            both = ahead + behind[::-1, ::-1] - emitted
            total = np.logaddexp.reduce(both[0])
            losses[number] = -total
            for place, label in enumerate(states):
                gradient[number, :, label] -= np.exp(both[:, place] - total)
        return losses, gradient / len(outputs)

    def _states(self, labels: np.ndarray) -> np.ndarray:
        """The labels with blanks before, between and after them."""
        own = labels[labels >= 0]
        states = np.full(2 * len(own) + 1, self.blank)
        states[1::2] = own
        return states

    def _skips(self, states: np.ndarray) -> np.ndarray:
        """True for states that may follow the one two before."""
        skips = np.zeros(len(states), bool)
        skips[2:] = (states[2:] != self.blank) & (states[2:] != states[:-2])
        return skips

    def decode(self, outputs: np.ndarray) -> list[list[int]]:
        """Return the labels of each example on its best path: the largest output of each frame, without repeats and
        blanks. `outputs`: (n, frames, classes), as `predict` returns them."""
        found = []
        for path in np.asarray(outputs).argmax(-1):
            kept = path[np.append(True, path[1:] != path[:-1])]
            found.append(kept[kept != self.blank].tolist())
        return found

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        n, frames, classes = outputs.shape
        states = 2 * self._most(frames) + 1
        log_p = e.tensor("log probabilities", outputs.shape)
        ahead, behind = e.tensor("ahead", (n * frames, states)), e.tensor("behind", (2 * n, states))
        answers = Answers(e.tensor("losses", (1, n)), e.tensor("right", (1, n)))
        e.launch(
            "softmax_cross_entropy.cl", "softmax", (outputs.rows * e.traits.group,), outputs.read, log_p.write,
            outputs.rows, classes, whole=True, gradient=False, logarithm=True,
        )  # fmt: skip
        more = [behind.write, control.scalars.read, gradient.write] if gradient is not None else []
        e.launch(
            "ctc.cl", "ctc", (n * e.traits.group,), log_p.read, control.targets.read, answers.losses.write,
            answers.right.write, ahead.write, n, classes, frames, states, self.blank, *more, whole=True,
            gradient=gradient is not None,
        )  # fmt: skip
        return answers


def _passes(emitted: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities of all paths to each state, by frame."""
    found = np.full(emitted.shape, -np.inf)
    found[0, :2] = emitted[0, :2]
    for frame in range(1, len(emitted)):
        before = found[frame - 1]
        sums = np.logaddexp(before, np.append(-np.inf, before[:-1]))
        skipped = np.append([-np.inf, -np.inf], before[:-2])[: len(before)]
        found[frame] = np.where(skips, np.logaddexp(sums, skipped), sums) + emitted[frame]
    return found
