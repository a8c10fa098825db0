"""Numbers that host and device share during a mini-batch, in the places named by kernels/include/scalars.h."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor

# places in `scalars`, which the host writes
INVERSE_BATCH, LEARNING_RATE, CORRECTION, SEED, SEED_HIGH, STEP, SECOND_CORRECTION, UNSCALE = range(8)
LOSS, CORRECT, SEEN, NONFINITE, OUTPUTS = range(5)  # places in `counters`, which the device counts


@dataclass(frozen=True)
class Control:
    """Tensors of these numbers, and what the loss compares the outputs of a micro-batch with.

    Arguments:
    - `scalars`, `counters`: 16 words each, or more counters for many outputs.
    - `targets`: int32 class numbers (1, rows), or float32 values in the shape of the outputs.
    - `weights`: float32 (1, rows), or None if every row counts alike (default).
    """

    scalars: Tensor
    counters: Tensor
    targets: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Answers:
    """Results of a micro-batch to be counted: `losses` and `right` (from 0 to 1) of each row."""

    losses: Tensor
    right: Tensor
