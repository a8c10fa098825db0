"""The exponential moving average of the weights."""

from __future__ import annotations

from edgelearn.launch import Buffer, In, InOut
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.tensor import ceil_div

from .base import Optimizer, chunk_of


def emit_average(e: Emitter, optimizer: Optimizer, w: Buffer, average: Buffer, control: Control) -> None:
    """Emit average += (w - average) * (1 - ema_momentum); the first step sets it to w, as in Keras."""
    blocks, chunk = w.nbytes // 64, chunk_of(e)
    e.launch(
        "optimizer.cl", "moving_average", (ceil_div(blocks, chunk),), InOut(average), In(w), control.scalars.read,
        control.counters.read, blocks, float(1 - optimizer.ema_momentum), chunk=chunk,
    )  # fmt: skip
