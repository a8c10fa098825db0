"""Norms of tensors on the device, and clipping of gradients by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgelearn.launch import Buffer, In, InOut, Role
from edgelearn.ops.control import Control
from edgelearn.ops.emit import Emitter
from edgelearn.ops.tensor import Tensor, ceil_div

from .base import CHUNK, Optimizer, chunk_of

PARTS = 256  # most parts in which a GPU adds up a tensor's squares


def parts_of(e: Emitter, blocks: int) -> tuple[int, int]:
    """(parts, blocks a part) in which the squares of a tensor of `blocks` blocks are added up."""
    count = max(ceil_div(blocks, PARTS), 4) if e.traits.gpu else CHUNK
    return ceil_div(blocks, count), count


@dataclass(frozen=True)
class Clipping:
    """The clipping of the gradients of a mini-batch, in two parts: `emit_factors` before the check for NaN and
    infinity, which then sees a norm that overflows, and `emit` after it, with what the first returned.

    Arguments:
    - `optimizer`: its limits.
    - `gradients`: those of each parameter tensor.
    - `whole`: the memory of all of them.
    - `control`: numbers shared with the host.
    """

    optimizer: Optimizer
    gradients: Sequence[Buffer]
    whole: Buffer
    control: Control

    @property
    def clipped(self) -> Sequence[Buffer]:
        """The gradients that are clipped by a norm of their own."""
        return [self.whole] if self.optimizer.global_clipnorm is not None else self.gradients

    def emit_factors(self, e: Emitter) -> list[Tensor]:
        """Emit the jobs for the factors of clipping by a norm, and return these."""
        factors: list[Tensor] = []
        limit = self.optimizer.clipnorm if self.optimizer.global_clipnorm is None else self.optimizer.global_clipnorm
        for g in self.clipped if limit is not None else []:
            blocks = g.nbytes // 64
            parts, count = parts_of(e, blocks)
            sums = e.tensor(f"{g.name} sums of squares", (parts, 16), Role.PARTIAL)
            factors.append(e.tensor(f"{g.name} clipping factor", (1, 16), Role.PARTIAL))
            flags = e.tensor(f"{g.name} norm flags", (1, 16), Role.CHECK)
            e.job("norms.cl", "square_sums", parts, In(g), sums.write, numbers=(blocks, count))
            e.job(
                "norms.cl", "clip_factor", 1, sums.read, factors[-1].write, flags.write, numbers=(parts,),
                settings=(float(limit or 0),), whole=True,
            )  # fmt: skip
        e.emit_jobs()
        return factors

    def emit(self, e: Emitter, factors: Sequence[Tensor]) -> None:
        """Emit the clipping itself."""
        counters = self.control.counters
        if self.optimizer.clipvalue is not None:
            blocks, chunk, limit = self.whole.nbytes // 64, chunk_of(e), float(self.optimizer.clipvalue)
            e.launch(
                "norms.cl", "clip_values", (ceil_div(blocks, chunk),), InOut(self.whole), counters.read, blocks, limit,
                chunk=chunk,
            )  # fmt: skip
            return
        for g, factor in zip(self.clipped, factors, strict=True):
            blocks = g.nbytes // 64
            parts, count = parts_of(e, blocks)
            accesses = InOut(g), factor.read, counters.read
            e.job("norms.cl", "clip_by_factor", parts, *accesses, numbers=(blocks, count))
        e.emit_jobs()
