"""The few numbers that host and device share during a mini-batch: kernels/include/scalars.h names the places."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor

INVERSE_BATCH, LEARNING_RATE, CORRECTION, SEED, SEED_HIGH, STEP = range(6)  # in `scalars`, written by the host
LOSS, CORRECT, SEEN, NONFINITE = range(4)  # in `counters`, counted by the device


@dataclass(frozen=True)
class Control:
    """`scalars` and `counters`: 16 words each; `labels`: an int32 for each example of the micro-batch."""

    scalars: Tensor
    counters: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Answers:
    """What a micro-batch leaves to be counted: the loss of each example, and whether its answer is right."""

    losses: Tensor
    right: Tensor
