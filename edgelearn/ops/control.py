"""The few numbers that host and device share during a mini-batch: kernels/include/scalars.h names the places."""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Emitter
from .tensor import Tensor

INVERSE_BATCH, LEARNING_RATE, CORRECTION, SEED, SEED_HIGH, STEP = range(6)  # in `scalars`, written by the host
LOSS, CORRECT, SEEN, NONFINITE = range(4)  # in `counters`, counted by the device


@dataclass(frozen=True)
class Control:
    """`scalars` and `counters`: 16 words each; `labels`: an int32 for each example of the micro-batch."""

    scalars: Tensor
    counters: Tensor
    labels: Tensor


def emit_count(e: Emitter, losses: Tensor, right: Tensor, control: Control, n: int) -> None:
    e.launch(
        "softmax_cross_entropy.cl", "count_examples", (1,), losses.read, right.read, control.counters.update, n,
        whole=True, gradient=False,
    )  # fmt: skip
