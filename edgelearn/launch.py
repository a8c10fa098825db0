"""Kernel launches as data: buffers, launches, transfers and the bytes they move, before any memory exists.

A program is a list of launches, so that lifetimes and dependencies of buffers can be analysed before a device runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np


class Role(Enum):
    """The purpose of a buffer, which decides how long it lives."""

    PARAMETER = "parameters"  # trained: lives as long as the plan
    CONSTANT = "constants"  # frozen weights and statistics
    STATISTICS = "moving statistics"  # updated by training
    MOVING = "moving statistics of a step"  # until the step is known to be finite
    GRADIENT = "gradients"  # summed over a mini-batch
    PARTIAL = "partial sums of gradients"  # accumulated over a mini-batch, added up at its end
    CHECK = "checks of gradients"  # for NaN and infinity
    OPTIMIZER = "optimizer state"
    PREPARED = "prepared weights"  # derived from parameters once a mini-batch
    RANGE = "ranges of quantized tensors"  # updated by training
    FOUND = "ranges found in a step"  # partial results
    INPUT = "inputs"  # written by the host
    CONTROL = "counters"  # a few numbers between host and device
    PAGED = "paged activations"  # outside the device
    TEMPORARY = "activations and workspace"  # shares one arena; lives from its first write to its last read


def words_of(dtype: str) -> np.dtype:
    """NumPy's type of values in memory; it has none for bfloat16, whose words are 16 bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


@dataclass(eq=False)
class Buffer:
    """Memory that launches read and write, before it has a place.

    Arguments:
    - `name`: for tables and errors.
    - `nbytes`: its size.
    - `role`: how long it lives, and which memory it shares.
    - `layer`: name of the layer it belongs to (default "": none).
    - `dtype`: of its values (default "float32").
    """

    name: str
    nbytes: int
    role: Role
    layer: str = ""
    dtype: str = "float32"

    def __repr__(self) -> str:
        return f"<{self.role.name.lower()} {self.name}: {self.nbytes:,} bytes>"


@dataclass(frozen=True)
class Access:
    """Use of a buffer by a kernel.

    Arguments:
    - `buffer`: the buffer.
    - `part`: bytes of it that the kernel touches (default None: all).
    - `first`: bytes before them (default 0).
    """

    buffer: Buffer
    part: int | None = None
    first: int = 0
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
    candidates: tuple[dict[str, int], ...]
    chosen: dict[str, int]


@dataclass(frozen=True)
class Tail:
    """Work that a kernel can do on its result as it writes it, for which another launch would read it.

    Arguments:
    - `result`: the buffer it writes.
    - `work`: the kind of fusion, and the macro that has it do so: "moments" of a result or "norm_sums" of a gradient,
      sums over groups of rows (kernels/include/moments.h); or "residual", the sum with another tensor.
    - `groups`: number of groups of rows (default 0: it has none).
    - `rows`: of a group.
    - `span`: rows after which groups begin anew.
    - `without`: a buffer that it doesn't read if it does this: the output of an activation, which follows from what the
      sums are taken with (default None).
    """

    result: Buffer
    work: str
    groups: int = 0
    rows: int = 0
    span: int = 0
    without: Buffer | None = None


@dataclass(frozen=True)
class Launch:
    """One run of a kernel on a grid of work-items.

    Arguments:
    - `source`: a file in kernels/, the absolute path of one elsewhere, or the text of a generated kernel.
    - `kernel`: a kernel in it.
    - `macros`: (name, value) pairs that it is compiled with.
    - `grid`: number of work-items along each dimension.
    - `group`: work-items of a work-group, along the first dimension.
    - `arguments`: accesses to buffers, ints (int32) and floats (float32).
    - `layer`: name of the layer (default "").
    - `flops`: arithmetic of linear layers; a multiply-add counts two (default 0).
    - `decision`: the choice that it results from (default None).
    - `replay`: launches that recompute its temporaries, if repeating it would have side effects (default: itself).
    - `tail`: what else it can do as it writes (default None: nothing).
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
    tail: Tail | None = None

    def extended(self, *arguments: Access, result: Access | None = None, **macros: int | str) -> Launch:
        """The launch that does the work of its `tail`, too, which takes `arguments`. A recomputation does it again,
        into temporaries that nothing reads: a kernel without sums would be another program, of a third of a megabyte.

        Arguments:
        - `result`: where the result goes then (default: where it was).
        - `macros`: others that change.
        """
        tail = self.tail
        assert tail
        own = [
            result if result and tail.result in _written(a) else a
            for a in self.arguments
            if tail.without not in _read(a)
        ]
        values = dict(self.macros) | {tail.work.upper(): 1} | {name.upper(): value for name, value in macros.items()}
        again = tuple(launch.extended(*arguments, result=result, **macros) for launch in self.replay if launch.tail)
        return replace(
            self, arguments=(*own, *arguments), macros=tuple(sorted(values.items())), tail=None,
            replay=again or self.replay,
        )  # fmt: skip

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


def _read(argument: Access | Many | int | float) -> tuple[Buffer, ...]:
    return (argument.buffer,) if isinstance(argument, Access) and argument.reads else ()


def _written(argument: Access | Many | int | float) -> tuple[Buffer, ...]:
    return (argument.buffer,) if isinstance(argument, Access) and argument.writes else ()


def scalar(value: int | float):
    """The OpenCL argument for a Python number."""
    return np.int32(value) if isinstance(value, int | np.integer) else np.float32(value)


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


class Moved(NamedTuple):
    """Key of a traffic count: the launch's layer and kernel, the tensor, and "read" or "written"."""

    layer: str
    kernel: str
    tensor: str
    direction: str


class Traffic(Counter[Moved]):
    """Bytes by layer, kernel, tensor and direction. Traffics can be added and compared."""

    @classmethod
    def of(cls, launches: Iterable[Launch], times: int = 1) -> Traffic:
        """Count the bytes of `launches`, run `times` times."""
        traffic = cls()
        for launch in launches:
            for access in launch.accesses:
                for direction in ["read"] * access.reads + ["written"] * access.writes:
                    place = Moved(launch.layer, launch.kernel, access.buffer.name, direction)
                    traffic[place] += times * access.nbytes
        return traffic

    def by(self, field: str) -> dict[str, int]:
        """Bytes by "layer", "kernel", "tensor" or "direction"."""
        sums: Counter[str] = Counter()
        for moved, nbytes in self.items():
            sums[getattr(moved, field)] += nbytes
        return dict(sums)
