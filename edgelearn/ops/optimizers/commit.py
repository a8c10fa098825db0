"""Statistics of a step, kept only if the step is finite."""

from __future__ import annotations

from edgelearn.launch import Buffer, In, Out
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.tensor import ceil_div

from .base import chunk_of


def emit_commit(e: Emitter, source: Buffer, target: Buffer, control: Control) -> None:
    """Emit target = source, unless a gradient of this mini-batch isn't finite."""
    blocks, chunk = source.nbytes // 64, chunk_of(e)
    e.launch(
        "optimizer.cl", "commit", (ceil_div(blocks, chunk),), In(source), Out(target), control.counters.read, blocks,
        chunk=chunk,
    )  # fmt: skip
