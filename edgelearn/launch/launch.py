"""One kernel launch as data: which kernel, over which grid, on which buffers. A program is a list of launches, so that
lifetimes and dependencies of buffers can be analysed before a device runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edgelearn.tuned import KernelConfig

from .buffers import Buffer


@dataclass(frozen=True)
class Access:
    """Use of a buffer by a kernel, which touches `part` bytes of it (default: all)."""

    buffer: Buffer
    part: int | None = None
    reads = writes = False

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes if self.part is None else self.part


class In(Access):
    """The kernel reads this buffer."""

    reads = True


class InMask(In):
    """The kernel reads only which values are above 0 (for a ReLU6 also: below 6), so a mask can replace the buffer."""


class Out(Access):
    """The kernel overwrites this buffer without reading it."""

    writes = True


class InOut(Access):
    """The kernel reads and writes this buffer."""

    reads = writes = True


@dataclass(frozen=True)
class Many:
    """Accesses to buffers of one role by one launch for many layers: the kernel gets the memory that they share and
    reads their offsets from a table."""

    accesses: tuple[Access, ...]


@dataclass(frozen=True, eq=False)
class Decision:
    """The chosen kernel configuration: tile sizes, splits, variant of a kernel. `name` identifies the computation, e.g.
    "pointwise_forward 12544x32x64"; the first of `candidates` is the safe default."""

    name: str
    candidates: tuple[KernelConfig, ...]
    chosen: KernelConfig


@dataclass(frozen=True)
class Launch:
    """One run of a kernel.

    Arguments:
    - `source`, `kernel`: file in kernels/ and the kernel's name, compiled with `macros`.
    - `grid`: number of work-items; `group`: work-group size along the first dimension.
    - `arguments`: accesses to buffers, ints (int32) and floats (float32).
    - `flops`: operations of linear layers, a multiply-add counted as two.
    - `decision`: the choice of kernel configuration that the launch results from.
    - `replay`: launches that recompute its temporaries, if repeating the launch itself would have side effects.
    """

    source: str
    kernel: str
    macros: tuple[tuple[str, int], ...]
    grid: tuple[int, ...]
    group: int
    arguments: tuple[Access | Many | int | float, ...]
    layer: str = ""
    flops: int = 0
    decision: Decision | None = None
    replay: tuple[Launch, ...] = ()

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        accesses: list[Access] = []
        for argument in self.arguments:
            if isinstance(argument, Many):
                accesses += argument.accesses
            elif isinstance(argument, Access):
                accesses.append(argument)
        return tuple(accesses)

    @property
    def nbytes(self) -> int:
        """Minimal memory traffic in bytes: each byte read or written counts once."""
        return sum(a.nbytes * (a.reads + a.writes) for a in self.accesses)

    def on(self, replacements: Mapping[Buffer, Buffer]) -> Launch:
        """The same launch on other buffers."""

        def moved(access: Access) -> Access:
            return replace(access, buffer=replacements.get(access.buffer, access.buffer))

        def on(argument: Access | Many | int | float) -> Access | Many | int | float:
            if isinstance(argument, Many):
                return Many(tuple(map(moved, argument.accesses)))
            return moved(argument) if isinstance(argument, Access) else argument

        return replace(self, arguments=tuple(map(on, self.arguments)))

    @property
    def reads(self) -> list[Buffer]:
        return [a.buffer for a in self.accesses if a.reads]

    @property
    def reads_values(self) -> list[Buffer]:
        """Buffers whose values the kernel reads, so that a mask can't replace them."""
        return [a.buffer for a in self.accesses if a.reads and not isinstance(a, InMask)]

    @property
    def writes(self) -> list[Buffer]:
        return [a.buffer for a in self.accesses if a.writes]


def scalar(value: int | float):
    """The OpenCL argument for a Python number."""
    return np.int32(value) if isinstance(value, int | np.integer) else np.float32(value)
