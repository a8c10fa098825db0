"""The proximal term of FedProx: weights are pulled back to those that training began with."""

from __future__ import annotations

from edgelearn.launch import Buffer, In, InOut
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.tensor import ceil_div

from .base import Optimizer, chunk_of


def emit_proximal(e: Emitter, optimizer: Optimizer, w: Buffer, g: Buffer, reference: Buffer, control: Control) -> None:
    """Emit g += proximal (w - reference); the first step sets the reference to w."""
    blocks, chunk = w.nbytes // 64, chunk_of(e)
    e.launch(
        "optimizer.cl", "proximal", (ceil_div(blocks, chunk),), InOut(g), InOut(reference), In(w),
        control.scalars.read, control.counters.read, blocks, float(optimizer.proximal), chunk=chunk,
    )  # fmt: skip
