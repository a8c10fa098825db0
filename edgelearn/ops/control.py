"""Numbers that host and device share during a mini-batch, in the places named by kernels/include/scalars.h."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor

# places in `scalars`, which the host writes
INVERSE_BATCH, LEARNING_RATE, CORRECTION, SEED, SEED_HIGH, STEP, SECOND_CORRECTION = range(7)
LOSS, CORRECT, SEEN, NONFINITE = range(4)  # places in `counters`, which the device counts


@dataclass(frozen=True)
class Control:
    """Tensors of these numbers: `scalars` and `counters`, 16 words each; `labels`, an int32 for each example of the
    micro-batch."""

    scalars: Tensor
    counters: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Answers:
    """Results of a micro-batch to be counted: `losses` and `right` (1 or 0) of each example."""

    losses: Tensor
    right: Tensor
