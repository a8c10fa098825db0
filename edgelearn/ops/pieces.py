"""Pieces of the parameters, whose extremes an update leaves as it writes them (kernels/optimizer.cl)."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.launch import Access, Buffer, In, Many

from .tensor import Tensor


@dataclass(frozen=True)
class Pieces:
    """Division of the parameters into pieces: each work-item of an update takes one.

    Arguments:
    - `count`: number of pieces.
    - `table`: for each its first block of 16 values, one behind the last, and where its extremes go, in blocks, or -1.
    - `extremes`: the tensors that hold these; see `emit_quantized_weights`.
    """

    count: int
    table: Buffer
    extremes: tuple[Tensor, ...]

    @property
    def arguments(self) -> tuple[Access | Many, ...]:
        """PIECES_ARGUMENTS in kernels/optimizer.cl."""
        return In(self.table), Many(tuple(x.write for x in self.extremes))
