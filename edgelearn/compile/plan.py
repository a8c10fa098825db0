"""The plan: before anything runs, every launch of a step and the place of every byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.graph.network import Network
from edgelearn.launch import Buffer, Decision, Launch, Role, Traffic
from edgelearn.ops import Loss, Optimizer, SoftmaxCrossEntropy, Traits

from . import arena
from .lower import Lowering
from .memory.activation_memory import ActivationMemory, pages_of
from .precision.precision import Precision
from .program import Program, Settings
from .storage import Storage

MIB = 1 << 20


@dataclass(frozen=True)
class Request:
    """What is to be planned: a mini-batch of `batch_size` examples in micro-batches of `micro_batch`, gradients
    summed over them. Without an optimizer the plan only predicts and evaluates. `seed`, of 64 bits, is that of Dropout
    and of stochastic rounding. `saving` says of activations that aren't kept for the backward pass how they come back
    (see graph/saving.py)."""

    network: Network
    batch_size: int = 1
    micro_batch: int = 1
    optimizer: Optimizer | None = None
    batchnorm: str = "moving"
    loss: Loss | None = SoftmaxCrossEntropy()  # noqa: RUF009
    seed: int = 0
    precision: Precision = Precision()  # noqa: RUF009
    activation_memory: ActivationMemory = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises PlanError for batch sizes that can't be."""
        sizes = self.batch_size, self.micro_batch
        if any(not isinstance(size, int | np.integer) or size < 1 for size in sizes):
            raise PlanError("Batch sizes are whole numbers of at least 1, not {!r} and {!r}.".format(*sizes))
        for name, size in zip(("batch_size", "micro_batch"), sizes, strict=True):
            object.__setattr__(self, name, int(size))


@dataclass
class Plan:
    """Programs by (kind, examples, first), sizes by role, and the offset of every buffer in its role's memory."""

    request: Request
    traits: Traits
    alignment: int
    storage: Storage
    trainable: frozenset[str]  # the network's, when this was planned
    programs: dict[tuple[str, int, bool], Program] = field(default_factory=dict)
    offsets: dict[Buffer, int] = field(default_factory=dict)
    arena_bytes: int = 0
    paged_bytes: int = 0  # outside the device

    @cached_property
    def bytes_by_role(self) -> dict[Role, int]:
        """Planned device memory, in bytes."""
        sizes = {role: size for role, size in self.storage.sizes.items() if size}
        return sizes | ({Role.TEMPORARY: self.arena_bytes} if self.arena_bytes else {})

    @property
    def peak_bytes(self) -> int:
        """All device memory that the plan will hold."""
        return sum(self.bytes_by_role.values())

    def program(self, kind: str, examples: int, first: bool = True) -> Program:
        """The program of `kind` ("train", "evaluate" or "predict", and how ranges are got: see `kind`) for a
        micro-batch; made when first asked for."""
        key = kind, examples, first
        if key not in self.programs:
            self._add(key)
        return self.programs[key]

    def kind(self, kind: str, known: bool = True, step: int = 0) -> str:
        """The program that does `kind` in `step` of a training, whether or not ranges of tensors are `known`."""
        return kind + self.request.precision.mode(kind == "train", known, step)

    def micro_batches(self, examples: int) -> list[int]:
        """Sizes of the micro-batches of a mini-batch: full ones, the last one shorter where it doesn't divide."""
        micro = self.request.micro_batch
        full, rest = divmod(examples, micro)
        return [micro] * full + ([rest] if rest else [])

    def micro_batch_count(self, examples: int) -> int:
        return -(-examples // self.request.micro_batch)

    @property
    def step_launches(self) -> list[Launch]:
        """The launches of a step, in order: of a whole mini-batch where the plan trains, of a prediction otherwise."""
        kind = "train" if self.request.optimizer is not None else "predict"
        sizes = self.micro_batches(self.request.batch_size)
        programs = [self.program(kind, n, index == 0 or kind == "predict") for index, n in enumerate(sizes)]
        if kind == "predict":
            return [launch for program in programs for launch in program.prepare + program.micro]
        micro = [launch for program in programs for launch in program.micro]
        return programs[0].prepare + micro + programs[0].finish

    @property
    def decisions(self) -> dict[str, Decision]:
        """What was decided about how kernels compute, by name."""
        launches = (launch for program in self.programs.values() for launch in program.launches)
        return {launch.decision.name: launch.decision for launch in launches if launch.decision}

    @property
    def tuned_count(self) -> int:
        """How many of the decisions are as tuned for this kind of device; the others are the safe defaults."""
        return sum(self.traits.tuned.get(name) == decision.chosen for name, decision in self.decisions.items())

    def live_bytes(self, kind: str = "train") -> list[tuple[str, int]]:
        """(layer, bytes of temporaries alive) at each launch of the largest micro-batch: the timeline of a step."""
        program = self.program(kind, self.request.micro_batch)
        launches, lives = program.micro, arena.lifetimes(program.micro, [program.y.buffer])
        return [
            (launch.layer, sum(buffer.nbytes for buffer in arena.alive(lives, at)))
            for at, launch in enumerate(launches)
        ]

    def traffic(self, examples: int | None = None, kind: str = "train") -> Traffic:
        """Bytes that an update from a mini-batch of `examples` (by default a full one) moves; `kind` as `self.kind`
        says for a step."""
        sizes = self.micro_batches(examples or self.request.batch_size)
        start = self.program(kind, sizes[0])
        moved = Traffic.of(start.launches)
        for n, times in Counter(sizes[1:]).items():
            moved += Traffic.of(self.program(kind, n, False).micro, times)
        return moved

    def to_dict(self) -> dict:
        """What a run records."""
        r = self.request
        return {
            "batch_size": r.batch_size, "micro_batch": r.micro_batch, "batchnorm": r.batchnorm,
            "peak_bytes": self.peak_bytes, "paged_bytes": self.paged_bytes,
            "bytes": {role.value: size for role, size in self.bytes_by_role.items()},
            "decisions": {"tuned": self.tuned_count, "all": len(self.decisions)},
            "precision": r.precision.to_dict(),
            "activation_memory": {name: str(strategy) for name, strategy in r.activation_memory.items()},
            "launches": {f"{kind} {n}": len(p.launches) for (kind, n, first), p in self.programs.items() if first},
        }  # fmt: skip

    def __str__(self) -> str:
        """The memory plan as a table."""
        r = self.request
        lines = [f"Memory plan of '{r.network.name}': mini-batch {r.batch_size} as micro-batches of {r.micro_batch}"]
        lines += [f"  {role.value:<26}{size / MIB:>10.2f} MiB" for role, size in self.bytes_by_role.items()]
        lines.append(f"  {'planned peak':<26}{self.peak_bytes / MIB:>10.2f} MiB")
        if self.paged_bytes:
            lines.append(
                f"  {'paged':<26}{self.paged_bytes / MIB:>10.2f} MiB in {pages_of(r.activation_memory.values()).place}"
            )
        lines.append(f"  tuned for this kind of device: {self.tuned_count} of {len(self.decisions)} kernels' sizes")
        if r.activation_memory:
            ways = Counter(type(way).__name__.lower() for way in r.activation_memory.values())
            lines.append(
                "  activations: " + ", ".join(f"{way} {count}" for way, count in ways.items()) + ", keep others"
            )
        if r.precision != Precision():
            lines += [f"  {line}" for line in str(r.precision).splitlines()]
        return "\n".join(lines)

    def _add(self, key: tuple[str, int, bool]) -> None:
        kind, examples, first = key
        r = self.request
        if r.network.trainable != self.trainable:
            raise PlanError("Layers were frozen or unfrozen after this plan was made: make a new one.")
        base, _, _ = kind.partition(",")
        settings = Settings(
            None if base == "predict" else r.loss, base == "train", r.batchnorm, r.precision,
            kind.removeprefix(base), r.activation_memory,
        )  # fmt: skip
        lowering = Lowering(r.network, self.storage, self.traits, settings, examples, first)
        program = self.programs[key] = lowering.program(r.optimizer)
        for part, keep in ((program.prepare, []), (program.micro, [program.y.buffer]), (program.finish, [])):
            offsets, size = arena.place(arena.lifetimes(part, keep), self.alignment)
            self.offsets |= offsets
            self.arena_bytes = max(self.arena_bytes, size)
        pages, size = arena.place(arena.lifetimes(program.micro, role=Role.PAGED), self.alignment)
        self.offsets |= pages
        self.paged_bytes = max(self.paged_bytes, size)
        self.offsets |= self.storage.offsets
        self.__dict__.pop("bytes_by_role", None)
