"""The emitter, which collects the launches of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from edgelearn.launch import Access, Buffer, Decision, In, Launch, Many, Role
from edgelearn.tuned import Traits
from edgelearn.tuned.store import KernelConfig

from .compute import Compute
from .control import Control
from .function import LINEAR, Function
from .jobs import Job, Row, arguments, batches, layer, rows
from .pieces import Pieces
from .tensor import BLOCK, Shape, Tensor, blocked_bytes


@dataclass
class Emitter:
    """Collects the launches of a program for one kind of device.

    Arguments:
    - `traits`: the device's.
    - `launches`: those so far (default none).
    - `layer`: name of the layer whose launches are being emitted.
    - `training`: numbers shared with the host, in programs that train; else None.
    - `decision`: that launches belong to while `choose` is open, else None.
    - `compute`: the type that linear layers multiply in (default fp32).
    - `jobs`: collected by `job`, launched by `emit_jobs`.
    - `pieces`: of the parameters whose update is being emitted, if it is to leave their extremes; else None.
    """

    traits: Traits
    launches: list[Launch] = field(default_factory=list)
    layer: str = ""
    training: Control | None = None
    decision: Decision | None = None
    jobs: list[Job] = field(default_factory=list)
    compute: Compute = Compute()  # noqa: RUF009
    pieces: Pieces | None = None

    @contextmanager
    def choose(self, kernel: str, shape: Sequence[int], candidates: Sequence[KernelConfig]) -> Iterator[KernelConfig]:
        """The configuration of `kernel` for a problem of `shape`: the one tuned for this device if it is among
        `candidates`, else the first of these. Launches emitted inside belong to the decision."""
        name = f"{kernel} {'x'.join(map(str, shape))}"
        tuned = self.traits.tuned.get(name)
        chosen = tuned if tuned is not None and tuned in candidates else candidates[0]
        self.decision = Decision(name, tuple(candidates), chosen)
        try:
            yield chosen
        finally:
            self.decision = None

    def tensor(
        self, name: str, shape: Shape, role: Role = Role.TEMPORARY, block: int = BLOCK, dtype: str = "float32"
    ) -> Tensor:
        """A new tensor of this layer."""
        nbytes = blocked_bytes(prod(shape[:-1]), shape[-1], block, dtype)
        return Tensor(Buffer(f"{self.layer}/{name}", nbytes, role, self.layer, dtype), shape, block)

    def launch(
        self,
        source: str,
        kernel: str,
        grid: tuple[int, ...],
        *arguments: Access | Many | int | float,
        group: int = 0,
        flops: int = 0,
        whole: int = False,
        **macros: int | str,
    ) -> None:
        """Add a launch of the current layer.

        Arguments:
        - `source`: a file in `kernels/`, or the absolute path of one elsewhere.
        - `kernel`: a kernel in it.
        - `grid`: number of work-items, one for each block of 16 channels. On some devices several share a block, unless
          the kernel takes `whole` blocks.
        - `arguments`: accesses to buffers, ints (int32) and floats (float32).
        - `group`: work-items of a work-group (default: the device's).
        - `flops`: arithmetic of linear layers; a multiply-add counts two.
        - `macros`: compiled into the kernel, in capitals; a str is the name of something in its source, or a float.
        """
        if not whole and self.traits.vector < BLOCK:
            grid = (grid[0] * (BLOCK // self.traits.vector), *grid[1:])
            macros["vector_width"] = self.traits.vector
        values = {name.upper(): value if isinstance(value, str) else int(value) for name, value in macros.items()}
        named = tuple(sorted(values.items()))
        group = group or self.traits.group
        self.launches.append(Launch(source, kernel, named, grid, group, arguments, self.layer, flops, self.decision))

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Launches emitted inside run only if the temporaries that the last launch wrote are recomputed, in its place
        (see Launch.replay)."""
        last = len(self.launches) - 1
        yield
        self.launches[last:] = [replace(self.launches[last], replay=tuple(self.launches[last + 1 :]))]

    def job(
        self,
        source: str,
        kernel: str,
        items: int,
        *accesses: Access,
        numbers: tuple[int, ...] = (),
        settings: tuple[int | float, ...] = (),
        whole: bool = False,
        **macros: int | str,
    ) -> None:
        """Add work that may share a launch with other layers' (see `Job`); `emit_jobs` launches it."""
        named = tuple(sorted(macros.items()))
        self.jobs.append(Job(source, kernel, items, accesses, numbers, settings, whole, named, self.layer))

    def emit_jobs(self) -> None:
        """Launch the jobs collected so far, in as few launches as their order allows."""
        for batch in batches(self.jobs):
            items, first, before = sum(job.items for job in batch), batch[0], self.layer
            macros: dict[str, Any] = dict(first.macros)
            table = In(self.table(rows(batch)))
            self.layer = layer(batch)
            self.launch(
                first.source, first.kernel, (items,), *arguments(batch), table, len(batch), items, *first.settings,
                whole=first.whole, **macros,
            )  # fmt: skip
            self.layer = before
        self.jobs.clear()

    def partials(self, name: str, groups: int, total: Tensor) -> Tensor | None:
        """A tensor for up to `groups` partial sums of `total`; None if one group writes to the total itself."""
        if groups == 1:
            return None
        return self.tensor(name, (groups, total.rows, total.blocks * total.block), Role.PARTIAL)

    def table(self, rows: tuple[Row, ...]) -> Buffer:
        """A constant of int32 words, row by row; a buffer stands for its offset, in blocks."""
        raise NotImplementedError

    def bands(self, rows: int, blocks: int, least: int = 16) -> tuple[int, int]:
        """(groups, rows a group) for kernels of single rows: one row a work-item on GPUs, else bands of rows."""
        return (rows, 1) if self.traits.gpu else self.split_rows(rows, blocks, least)

    def split_rows(self, rows: int, units: int, least: int = 64, items: int = 0) -> tuple[int, int]:
        """(groups, rows a group) so that groups x `units` work-items keep the device busy.

        Arguments:
        - `least`: rows a group at least.
        - `items`: work-items a compute unit; 0 for the rule of thumb.
        """
        total = items * self.traits.compute_units or (16384 if self.traits.gpu else 8 * self.traits.compute_units)
        wanted = total // max(1, units)
        groups = max(1, min(wanted, rows // least))
        count = -(-rows // groups)
        return -(-rows // count), count


@dataclass(frozen=True)
class Epilogue:
    """The last operation of a linear op's kernel, as it writes: activation(v * scale + shift).

    Arguments:
    - `scale`, `shift`: of each channel (default None: 1 and 0).
    - `activation`: the function (default LINEAR).
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    activation: Function = LINEAR

    @property
    def macros(self) -> dict[str, Any]:
        return {"scale": self.scale is not None, "shift": self.shift is not None, **self.activation.macros()}

    @property
    def arguments(self) -> list[In]:
        return [t.read for t in (self.scale, self.shift) if t is not None]
