"""Copies between the device and offloaded pages, concurrent with computation."""

from __future__ import annotations

from dataclasses import dataclass

from .buffers import Buffer
from .launch import In, Launch, Out


@dataclass(frozen=True)
class Transfer(Launch):
    """Copy of a whole buffer between the device and a page (Role.PAGED). It starts after the launches before it; an
    Await marks where it must have ended."""

    @classmethod
    def of(cls, source: Buffer, target: Buffer, layer: str) -> Transfer:
        return cls("", "transfer", (), (1,), 1, (In(source), Out(target)), layer)

    @property
    def moved(self) -> int:
        """Number of bytes copied."""
        return self.source_buffer.nbytes

    @property
    def source_buffer(self) -> Buffer:
        return self.accesses[0].buffer

    @property
    def target_buffer(self) -> Buffer:
        return self.accesses[1].buffer


@dataclass(frozen=True)
class Await(Launch):
    """Makes later launches wait until the last Transfer from or to the device buffer `buffer` has ended."""

    @classmethod
    def of(cls, buffer: Buffer, layer: str) -> Await:
        return cls("", "await", (), (1,), 1, (In(buffer, 0),), layer)

    @property
    def buffer(self) -> Buffer:
        return self.accesses[0].buffer
