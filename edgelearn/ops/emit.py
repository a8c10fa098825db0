"""The emitter, which collects the launches of a program, and what it works with: the compute type, numbers that host
and device share, jobs of many layers that share a launch (kernels/include/jobs.h), and partial sums of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, Protocol
from zlib import crc32

from edgelearn.device import KernelConfig, Traits
from edgelearn.errors import PlanError
from edgelearn.launch import Access, Buffer, Decision, In, Launch, Many, Role, Tail

from .tensor import BLOCK, LINEAR, Function, Shape, Tensor, blocked_bytes, ceil_div

STORED = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LOSS_SCALE = 65536.0  # of fp16, at the start


# Work that a launch does along with its own, by kind; without the fusion it takes launches of its own.
FUSIONS = {
    "epilogues": "BatchNorm with stored statistics, and activations, by the kernel that computes their input",
    "sums": "an activation by the launch of the sum before it",
    "residual": "a sum, and the activation after it, by the launch that normalizes one of the two tensors",
    "moments": "mean and variance of a micro-batch by the kernel that computes what is normalized",
    "norm_sums": "the gradients of gamma and beta by the kernel that computes the gradient of the normalized output",
    "checks": "the check of a gradient for NaN and infinity by the kernel that computes it",
    "rounding": "quantization by the kernel that computes what is quantized",
    "jobs": "what each layer does once a mini-batch by launches for all layers",
    "updates": "the update of all parameters by one launch",
}


@dataclass(frozen=True)
class Compute:
    """The type that convolutions and dense layers multiply in. Sums and master weights are float32.

    Arguments:
    - `type`: `"fp32"` (default); `"tf32"`, float32 tensors whose values are rounded to 11 bits as they are multiplied,
      or cut to them by the unit WGMMA;
      `"bf16"` or `"fp16"`, which also store activations and their gradients as halves. `"fp16"` scales the loss.
    - `plain`: compute without matrix units, on any device: as exact, and slow (default False).

    Raises PlanError for another type.
    """

    type: str = "fp32"
    plain: bool = False

    def __post_init__(self) -> None:
        if self.type not in STORED:
            raise PlanError(
                f"compute is {', '.join(map(repr, STORED))}, or a Compute of one of them, not {self.type!r}."
            )

    def __str__(self) -> str:
        return f"{self.type}, plain code" if self.plain else self.type

    @classmethod
    def of(cls, compute: Compute | str) -> Compute:
        """`compute` itself, or that of a type."""
        return compute if isinstance(compute, Compute) else cls(compute)

    @property
    def stored(self) -> str:
        """The dtype of activations and their gradients."""
        return STORED[self.type]

    @property
    def stores_halves(self) -> bool:
        return self.stored != "float32"

    @property
    def scales_loss(self) -> bool:
        return self.type == "fp16"

    @property
    def uses_units(self) -> bool:
        """True if products are made by a device's matrix units."""
        return self.type != "fp32" and not self.plain

    @property
    def depth_rows(self) -> bool:
        """True if both factors of a product are read in rows along the depth (DEPTH_ROWS in
        kernels/include/matrix_units.h): forward products read transposed kernels, those for the gradient of the input
        kernels as they are."""
        return self.uses_units and self.type == "tf32"

    @property
    def macros(self) -> dict[str, int]:
        """TF32 in kernels/include/values.h."""
        return {"tf32": 1} if self.type == "tf32" else {}


@dataclass(frozen=True)
class Control:
    """Tensors of the numbers that host and device share (see constants.py), and what the loss compares outputs with.

    Arguments:
    - `scalars`, `counters`: 16 words each, or more counters for many outputs.
    - `targets`: int32 class numbers (1, rows), or float32 values in the shape of the outputs.
    - `weights`: float32 (1, rows), or None if every row counts alike (default).
    """

    scalars: Tensor
    counters: Tensor
    targets: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Answers:
    """Results of a micro-batch to be counted: `losses` and `right` (from 0 to 1) of each row."""

    losses: Tensor
    right: Tensor


Row = tuple[Buffer | int, ...]


@dataclass(frozen=True)
class Job:
    """Work of one layer.

    Arguments:
    - `source`, `kernel`, `macros`: see `Emitter.launch`.
    - `items`: number of work-items.
    - `accesses`: buffers.
    - `numbers`: ints of this job, in the table.
    - `settings`: arguments of the launch; jobs with different settings need different launches.
    """

    source: str
    kernel: str
    items: int
    accesses: tuple[Access, ...]
    numbers: tuple[int, ...] = ()
    settings: tuple[int | float, ...] = ()
    whole: bool = False
    macros: tuple[tuple[str, int | str], ...] = ()
    layer: str = ""

    @property
    def kind(self) -> tuple:
        """Jobs of equal kind can share a launch, whose arguments are the memory of each role."""
        places = tuple((type(a), a.buffer.role) for a in self.accesses)
        return self.source, self.kernel, self.whole, self.macros, self.settings, places

    @cached_property
    def touches(self) -> set[Buffer]:
        return {a.buffer for a in self.accesses}

    @cached_property
    def writes(self) -> set[Buffer]:
        return {a.buffer for a in self.accesses if a.writes}


def job_batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs grouped by launch, in an order with the same result as one by one."""
    groups: list[list[Job]] = []
    while jobs:
        ready: dict[tuple, list[Job]] = {}
        waiting: list[Job] = []
        touched: set[Buffer] = set()
        written: set[Buffer] = set()
        for job in jobs:
            if written.isdisjoint(job.touches) and touched.isdisjoint(job.writes):
                ready.setdefault(job.kind, []).append(job)
            else:
                waiting.append(job)
            touched |= job.touches
            written |= job.writes
        groups += ready.values()
        jobs = waiting
    return groups


def job_arguments(batch: Sequence[Job]) -> list[Many]:
    """The buffer arguments of a batch, by position."""
    return [Many(accesses) for accesses in zip(*(job.accesses for job in batch), strict=True)]


def job_layer(batch: Sequence[Job]) -> str:
    """A name for the layers of a batch."""
    names = {job.layer for job in batch}
    return batch[0].layer if len(names) == 1 else f"{len(names)} layers"


def job_rows(batch: Sequence[Job]) -> tuple[Row, ...]:
    """The table of a batch: for each job its first work-item, its buffers and its numbers."""
    first = accumulate((job.items for job in batch[:-1]), initial=0)
    return tuple(
        (start, *(a.buffer for a in job.accesses), *job.numbers) for start, job in zip(first, batch, strict=True)
    )


@dataclass(frozen=True)
class Pieces:
    """Division of the parameters into pieces: each work-item of an update takes one.

    Arguments:
    - `count`: number of pieces.
    - `table`: for each its first block of 16 values, one after the last, and where its extremes go, in blocks, or -1.
    - `extremes`: the tensors that hold these; see `emit_quantized_weights`.
    """

    count: int
    table: Buffer
    extremes: tuple[Tensor, ...]

    @property
    def arguments(self) -> tuple[Access | Many, ...]:
        """PIECES_ARGUMENTS in kernels/optimizer.cl."""
        return In(self.table), Many(tuple(x.write for x in self.extremes))


class Persistent(Protocol):
    """Memory for what outlives a program: the plan's storage."""

    def tensor(self, name: str, shape: Shape, role: Role, block: int, layer: str, *, dtype: str) -> Tensor: ...

    def partials(self, name: str, groups: int, total: Tensor) -> Tensor | None: ...

    def table(self, rows: tuple[Row, ...]) -> Buffer: ...


@dataclass
class Emitter:
    """Collects the launches of a program for one kind of device.

    Arguments:
    - `traits`: the device's.
    - `storage`: memory for all tensors but temporaries (default None: each has its own).
    - `launches`: those so far (default none).
    - `layer`: name of the layer whose launches are being emitted.
    - `training`: numbers shared with the host, in programs that train; else None.
    - `decision`: that launches belong to while `choose` is open, else None.
    - `compute`: the type that linear layers multiply in (default fp32).
    - `jobs`: collected by `job`, launched by `emit_jobs`.
    - `pieces`: of the parameters whose update is being emitted, if it is to leave their extremes; else None.
    - `keeps`: the layer's forward pass keeps what its backward pass will read (default True).
    - `unfused`: kinds of `FUSIONS` that are left out (default none).
    - `one_launch`: all launches run as one, whose work-groups are one for each compute unit (default False).
    - `steps`: what the forward pass of a layer keeps for its backward pass besides its output, by name: states and
      gates of recurrent layers, logarithms of attention.
    """

    traits: Traits
    storage: Persistent | None = None
    launches: list[Launch] = field(default_factory=list)
    layer: str = ""
    training: Control | None = None
    decision: Decision | None = None
    jobs: list[Job] = field(default_factory=list)
    compute: Compute = Compute()
    pieces: Pieces | None = None
    keeps: bool = True
    unfused: frozenset[str] = frozenset()
    one_launch: bool = False
    steps: dict[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def choose(self, kernel: str, shape: Sequence[int], candidates: Sequence[KernelConfig]) -> Iterator[KernelConfig]:
        """The configuration of `kernel` for a problem of `shape`: the one tuned for this device if it is among
        `candidates`, else the first of these. Launches emitted inside belong to the decision."""
        name = f"{kernel} {'x'.join(map(str, shape))}"
        tuned = self.traits.tuned.get(name)
        # The first candidate runs on any device; what was tuned elsewhere may not be offered here any more.
        chosen = tuned if tuned is not None and tuned in candidates else candidates[0]
        self.decision = Decision(name, tuple(candidates), chosen)
        try:
            yield chosen
        finally:
            self.decision = None

    def tensor(
        self, name: str, shape: Shape, role: Role = Role.TEMPORARY, block: int = BLOCK, dtype: str = "float32"
    ) -> Tensor:
        """A tensor of this layer: a new one if it is temporary, else that of this name in the storage."""
        if self.storage and role is not Role.TEMPORARY:
            return self.storage.tensor(f"{self.layer}/{name}", shape, role, block, self.layer, dtype=dtype)
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
        - `source`: a file in `kernels/`, the absolute path of one elsewhere, or the text of a generated kernel.
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

    def fuses(self, kind: str) -> bool:
        """True unless this kind of `FUSIONS` is left out."""
        return kind not in self.unfused

    def leave_tail(self, tail: Tail) -> None:
        """Say what the last launch can do besides."""
        self.launches[-1] = replace(self.launches[-1], tail=tail)

    def tail_of(self, x: Tensor, work: str) -> Tail | None:
        """The tail of the launch that wrote `x` last; None unless it can do this `work`, and doesn't yet."""
        tail = self.launches[at].tail if (at := self._writer(x)) is not None else None
        return tail if tail and tail.result is x.buffer and tail.work == work and self.fuses(work) else None

    def extend(self, x: Tensor, *arguments: Access) -> None:
        """Have the launch that wrote `x` last do the work of its tail, with the `arguments` that this takes."""
        at = self._writer(x)
        assert at is not None
        self.launches[at] = self.launches[at].extended(*arguments)

    def add_residual(self, x: Tensor, other: Tensor, y: Tensor, activation: Function) -> None:
        """Have the launch that would write `x`, and whose tail is a residual, write y = activation(x + other) instead.
        It runs now, when `other` is there."""
        at = self._writer(x)
        assert at is not None
        launch = self.launches.pop(at).extended(other.read, result=y.write, **activation.macros())
        self.launches.append(replace(launch, layer=self.layer))

    def _writer(self, x: Tensor) -> int | None:
        places = reversed(range(len(self.launches)))
        return next((at for at in places if x.buffer in self.launches[at].writes), None)

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
        for batch in job_batches(self.jobs) if self.fuses("jobs") else [[job] for job in self.jobs]:
            items, first, before = sum(job.items for job in batch), batch[0], self.layer
            macros: dict[str, Any] = dict(first.macros)
            # A launch costs as much as the work of a layer here: one grid for all, whose work-items find their job in a
            # table.
            table = In(self.table(job_rows(batch)))
            self.layer = job_layer(batch)
            self.launch(
                first.source, first.kernel, (items,), *job_arguments(batch), table, len(batch), items, *first.settings,
                whole=first.whole, **macros,
            )  # fmt: skip
            self.layer = before
        self.jobs.clear()

    def partials(self, name: str, groups: int, total: Tensor) -> Tensor | None:
        """A tensor for up to `groups` partial sums of `total`; None if one group writes to the total itself."""
        if self.storage:
            return self.storage.partials(name, groups, total)
        if groups == 1:
            return None
        return self.tensor(name, (groups, total.rows, total.blocks * total.block), Role.PARTIAL)

    def table(self, rows: tuple[Row, ...]) -> Buffer:
        """A constant of int32 words, row by row; a buffer stands for its offset, in blocks."""
        assert self.storage, "constants are kept in a storage"
        return self.storage.table(rows)

    def bands(self, rows: int, blocks: int, least: int = 16, several: bool = False) -> tuple[int, int]:
        """(groups, rows a group) for kernels of single rows: bands of `least` rows or more. On GPUs a work-item has one
        row, or four if its kernel reads `several` before it uses the first and that leaves the device busy."""
        if not self.traits.gpu:
            return self.split_rows(rows, blocks, least)
        busy = rows * blocks >= ROWS_AT_ONCE * BUSY_ROWS * self.traits.compute_units
        return (ceil_div(rows, ROWS_AT_ONCE), ROWS_AT_ONCE) if several and busy else (rows, 1)

    def split_rows(self, rows: int, units: int, least: int = 64, items: int = 0) -> tuple[int, int]:
        """(groups, rows a group) so that groups x `units` work-items keep the device busy.

        Arguments:
        - `least`: rows a group at least.
        - `items`: work-items a compute unit; 0 for the rule of thumb.
        """
        # A GPU hides waits for memory behind many work-items; a core needs a few, which even out their ends.
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
    - `before`: where the value before the activation goes, for kernels of dense layers on CPUs (default: nowhere).
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    activation: Function = LINEAR
    before: Tensor | None = None

    @property
    def macros(self) -> dict[str, Any]:
        before = {"before": 1} if self.before else {}
        return {"scale": self.scale is not None, "shift": self.shift is not None, **self.activation.macros(), **before}

    @property
    def arguments(self) -> list[Access]:
        read: list[Access] = [t.read for t in (self.scale, self.shift) if t is not None]
        return [*read, self.before.write] if self.before else read


def layer_code(layer: str) -> int:
    """A hash of 31 bits of a layer's name."""
    return crc32(layer.encode()) & 0x7FFFFFFF


ROWS_AT_ONCE = 4  # of a work-item of a GPU whose kernel reads several before it uses the first
BUSY_ROWS = 512  # that keep a compute unit of a GPU busy
LONGEST_SUM = 1 << 15  # terms added one after the other: a float32 sum of a million has an error of 2e-4


@dataclass(frozen=True)
class GradientSum:
    """A gradient that the micro-batches of a mini-batch add to.

    Arguments:
    - `total`: the gradient.
    - `partials`: `groups` partial sums, (groups, rows, channels), which `finish` adds up; None if kernels write to
      `total`.
    - `checked`: kernels check what they write to `total` for NaN and infinity (default False: `finish` does).
    """

    total: Tensor
    partials: Tensor | None = None
    groups: int = 1
    checked: bool = False

    @property
    def target(self) -> Tensor:
        return self.partials or self.total

    def access(self, add: bool) -> Access:
        """The kernel writes its part of the sum, or, with `add`, adds to those of earlier micro-batches."""
        return self.target.update if add else self.target.write


def start_sum(e: Emitter, total: Tensor, rows: int, groups: int, members: int = 1) -> tuple[GradientSum, int]:
    """(GradientSum, rows a member) for a kernel that adds up `rows` in `groups` of work-items with `members` each.

    All micro-batches of a plan share the partial sums, so the first one sets the number of groups; in smaller ones the
    last groups may have no rows.
    """
    partials = e.partials(f"{total.buffer.name} partial sums", groups, total)
    groups = partials.shape[0] if partials else 1
    return GradientSum(total, partials, groups), ceil_div(rows, groups * members)


def emit_channel_sums(e: Emitter, x: Tensor, total: Tensor, add: bool) -> GradientSum:
    """Emit the sum of x over its rows; `add`: add it to that of earlier micro-batches."""
    members = e.traits.members
    items, _ = e.split_rows(x.rows, x.blocks, least=16 if e.traits.gpu else 64)
    channel_sum, count = start_sum(e, total, x.rows, ceil_div(items, members), members)
    e.launch(
        "reduce.cl", "channel_sums", (channel_sum.groups * members, x.blocks), x.read,
        channel_sum.access(add), x.rows, x.blocks, count, int(add),
        **x.value_macros,
    )  # fmt: skip
    return channel_sum
