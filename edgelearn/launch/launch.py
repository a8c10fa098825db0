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
    """Use of a buffer by a kernel.

    Arguments:
    - `buffer`: the buffer.
    - `part`: bytes of it that the kernel touches (default None: all).
    """

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
    """The kernel reads only which of two slopes an activation has at each value, so a mask can replace the buffer."""


class Out(Access):
    """The kernel overwrites this buffer without reading it."""

    writes = True


class InOut(Access):
    """The kernel reads and writes this buffer."""

    reads = writes = True


@dataclass(frozen=True)
class Many:
    """Accesses to buffers of one role by one launch for many layers: the kernel gets the memory that they share and
    reads their offsets from a table.

    Arguments:
    - `accesses`: of the layers, in their order.
    """

    accesses: tuple[Access, ...]


@dataclass(frozen=True, eq=False)
class Decision:
    """A choice between configurations of a kernel: tile sizes, splits, variants.

    Arguments:
    - `name`: kernel and problem, such as "pointwise_forward 12544x32x64".
    - `candidates`: configurations; the first one is safe on every device.
    - `chosen`: the configuration that the plan uses.
    """

    name: str
    candidates: tuple[KernelConfig, ...]
    chosen: KernelConfig


@dataclass(frozen=True)
class Launch:
    """One run of a kernel on a grid of work-items.

    Arguments:
    - `source`: a file in kernels/, or the absolute path of one elsewhere.
    - `kernel`: a kernel in it.
    - `macros`: (name, value) pairs that it is compiled with.
    - `grid`: number of work-items along each dimension.
    - `group`: work-items of a work-group, along the first dimension.
    - `arguments`: accesses to buffers, ints (int32) and floats (float32).
    - `layer`: name of the layer (default "").
    - `flops`: arithmetic of linear layers; a multiply-add counts two (default 0).
    - `decision`: the choice that it results from (default None).
    - `replay`: launches that recompute its temporaries, if repeating it would have side effects (default: itself).
    """

    source: str
    kernel: str
    macros: tuple[tuple[str, int | str], ...]
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
