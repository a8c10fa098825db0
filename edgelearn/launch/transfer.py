"""Copies between the device and pages outside it, which go on while launches compute."""

from __future__ import annotations

from dataclasses import dataclass

from .buffers import Buffer
from .launch import In, Launch, Out


@dataclass(frozen=True)
class Transfer(Launch):
    """Copies a whole buffer. One of the two is on the device, the other in pages (Role.PAGED). It begins once launches
    before it are done; an Await says when it must have ended."""

    @classmethod
    def of(cls, source: Buffer, target: Buffer, layer: str) -> Transfer:
        return cls("", "transfer", (), (1,), 1, (In(source), Out(target)), layer)

    @property
    def moved(self) -> int:
        """Bytes."""
        return self.source_buffer.nbytes

    @property
    def source_buffer(self) -> Buffer:
        return self.accesses[0].buffer

    @property
    def target_buffer(self) -> Buffer:
        return self.accesses[1].buffer


@dataclass(frozen=True)
class Await(Launch):
    """Launches behind it begin once the last Transfer from or to `buffer`, on the device, has ended."""

    @classmethod
    def of(cls, buffer: Buffer, layer: str) -> Await:
        return cls("", "await", (), (1,), 1, (In(buffer, 0),), layer)

    @property
    def buffer(self) -> Buffer:
        return self.accesses[0].buffer
