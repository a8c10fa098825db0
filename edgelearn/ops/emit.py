"""How ops turn into launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from edgelearn.launch import Access, Buffer, Decision, In, KernelConfig, Launch, Many, Role
from edgelearn.tuned import Traits

from .control import Control
from .jobs import Job, Row, arguments, batches, layer, rows
from .tensor import BLOCK, Shape, Tensor, blocked_bytes

LINEAR, RELU, RELU6, SILU = 0, 1, 2, 3


@dataclass
class Emitter:
    """Collects the launches of a program for one kind of device. `training` is there in programs that train: some
    layers then do something else."""

    traits: Traits
    launches: list[Launch] = field(default_factory=list)
    layer: str = ""
    training: Control | None = None
    decision: Decision | None = None
    jobs: list[Job] = field(default_factory=list)

    @contextmanager
    def choose(self, kernel: str, shape: Sequence[int], candidates: Sequence[KernelConfig]) -> Iterator[KernelConfig]:
        """How `kernel` computes a problem of `shape`: as tuned for this device where that is among `candidates`, else
        the first of them. Launches emitted inside belong to the decision."""
        name = f"{kernel} {'x'.join(map(str, shape))}"
        tuned = self.traits.tuned.get(name)
        chosen = tuned if tuned in candidates else candidates[0]
        self.decision = Decision(name, tuple(candidates), chosen)
        try:
            yield chosen
        finally:
            self.decision = None

    def tensor(
        self, name: str, shape: Shape, role: Role = Role.TEMPORARY, block: int = BLOCK, dtype: str = "float32"
    ) -> Tensor:
        """A new buffer of this layer for a blocked matrix of `shape`."""
        nbytes = blocked_bytes(Tensor(None, shape).rows, shape[-1], block, dtype)
        return Tensor(Buffer(f"{self.layer}/{name}", nbytes, role, self.layer, dtype), shape, block)

    def launch(
        self,
        source: str,
        kernel: str,
        grid: tuple[int, ...],
        *arguments: Access | Many | int | float,
        group: int = 0,
        flops: int = 0,
        layer: str = "",
        whole: bool = False,
        **macros: int,
    ) -> None:
        """Add a launch; see Launch. `grid` counts blocks of channels, which several work-items share on some devices,
        unless the kernel wants `whole` ones."""
        if not whole and self.traits.vector < BLOCK:
            grid = (grid[0] * (BLOCK // self.traits.vector), *grid[1:])
            macros["vector_width"] = self.traits.vector
        named = tuple(sorted((name.upper(), int(value)) for name, value in macros.items()))
        group, layer = group or self.traits.group, layer or self.layer
        self.launches.append(Launch(source, kernel, named, grid, group, arguments, layer, flops, self.decision))

    @contextmanager
    def replay(self) -> Iterator[None]:
        """What is emitted inside doesn't run, unless the temporaries that the last launch wrote must be made once more
        (see Launch.again)."""
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
        **macros: int,
    ) -> None:
        """Work that may share a launch with other layers'; see `emit_jobs`."""
        named = tuple(sorted(macros.items()))
        self.jobs.append(Job(source, kernel, items, accesses, numbers, settings, whole, named, self.layer))

    def emit_jobs(self) -> None:
        """Launch the jobs collected so far, as few launches as their order allows."""
        for batch in batches(self.jobs):
            items, first = sum(job.items for job in batch), batch[0]
            table = In(self.table(rows(batch)))
            self.launch(
                first.source, first.kernel, (items,), *arguments(batch), table, len(batch), items, *first.settings,
                whole=first.whole, layer=layer(batch), **dict(first.macros),
            )  # fmt: skip
        self.jobs.clear()

    def partials(self, name: str, groups: int, total: Tensor) -> Tensor | None:
        """A place for up to `groups` partial sums of `total`; None where one group writes to the total itself."""
        if groups == 1:
            return None
        return self.tensor(name, (groups, total.rows, total.blocks * total.block), Role.PARTIAL)

    def table(self, rows: tuple[Row, ...]) -> Buffer:
        """A constant of int32 words, the rows one after the other; for a buffer, where it starts, in blocks."""
        raise NotImplementedError

    def bands(self, rows: int, blocks: int, least: int = 16) -> tuple[int, int]:
        """(groups, rows a group) where every row is its own: one row a work-item on GPUs, else bands of rows."""
        return (rows, 1) if self.traits.gpu else self.split_rows(rows, blocks, least)

    def split_rows(self, rows: int, units: int, least: int = 64, items: int = 0) -> tuple[int, int]:
        """(groups, rows a group) so that groups x `units` work-items keep the device busy, with at least `least`
        rows a group: `items` work-items a compute unit, 0 for the rule of thumb."""
        total = items * self.traits.compute_units or (16384 if self.traits.gpu else 8 * self.traits.compute_units)
        wanted = total // max(1, units)
        groups = max(1, min(wanted, rows // least))
        count = -(-rows // groups)
        return -(-rows // count), count


@dataclass(frozen=True)
class Epilogue:
    """What a forward kernel does as it writes: activation(v * scale + shift)."""

    scale: Tensor | None = None
    shift: Tensor | None = None
    activation: int = LINEAR

    @property
    def macros(self) -> dict[str, int]:
        return {
            "scale": self.scale is not None,
            "shift": self.shift is not None,
            "activation": self.activation,
        }

    @property
    def arguments(self) -> list[In]:
        return [t.read for t in (self.scale, self.shift) if t is not None]


@dataclass(frozen=True)
class GradientTarget:
    """Where a backward kernel puts the gradient of its input. `mask` is the input itself where it came out of a fused
    activation; `accumulate` says that another consumer of the input has already written its share."""

    tensor: Tensor
    mask: Tensor | None = None
    activation: int = LINEAR
    accumulate: bool = False

    @property
    def macros(self) -> dict[str, int]:
        return {"mask": self.mask is not None, "activation": self.activation, "accumulate": self.accumulate}

    @property
    def arguments(self) -> list[Access]:
        write = self.tensor.update if self.accumulate else self.tensor.write
        return [write] + ([self.mask.read_mask] if self.mask is not None else [])
