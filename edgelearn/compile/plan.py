"""The plan: before anything runs, every launch of a step and the place of every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, Decision, Launch, Role, Traffic
from edgelearn.ops import Traits

from . import arena
from .memory.activation_memory import pages_of
from .precision.precision import Precision, RangeMode
from .program import Kind, Program, ProgramKey
from .request import Request
from .storage import Storage

MIB = 1 << 20


@dataclass(frozen=True, eq=False)
class Plan:
    """Every launch of the programs that a session may run, and the place of every byte. Made by `layout.lay_out`.

    - `programs`: by key, all that there will ever be.
    - `offsets`: of each buffer in the memory of its role, in bytes.
    - `arena_bytes`: size of the memory that temporaries share.
    - `paged_bytes`: size of the pages outside the device.
    - `alignment`: bytes; all offsets are multiples of it.
    """

    request: Request
    traits: Traits
    alignment: int
    storage: Storage
    programs: Mapping[ProgramKey, Program]
    offsets: Mapping[Buffer, int]
    arena_bytes: int
    paged_bytes: int

    @cached_property
    def bytes_by_role(self) -> dict[Role, int]:
        """Planned device memory, in bytes."""
        sizes = {role: size for role, size in self.storage.sizes.items() if size}
        return sizes | ({Role.TEMPORARY: self.arena_bytes} if self.arena_bytes else {})

    @property
    def peak_bytes(self) -> int:
        """All device memory that the plan will hold."""
        return sum(self.bytes_by_role.values())

    def program(
        self, kind: Kind, examples: int | None = None, ranges: RangeMode = RangeMode.OBSERVED, first: bool = True
    ) -> Program:
        """The program of this key; `examples` is the request's micro-batch unless given. Raises PlanError for a
        program that the plan doesn't have, naming the sizes that it has."""
        key = ProgramKey(kind, self.request.micro_batch if examples is None else examples, ranges, first)
        if key not in self.programs:
            sizes = sorted({k.examples for k in self.programs if replace(k, examples=key.examples) == key})
            which = f"last_batches=({key.examples},)" if kind is Kind.TRAIN else f"remainders=({key.examples},)"
            raise PlanError(
                f"The plan has no program '{key}': its sizes for this are {sizes}. Name all that will run in the "
                f"request, such as Request(..., {which})."
            )
        return self.programs[key]

    def ranges(self, kind: Kind, known: bool = True, step: int = 0) -> RangeMode:
        """How the program that does `kind` in `step` of a training gets ranges, whether or not they are `known`."""
        return self.request.precision.mode(kind is Kind.TRAIN, known, step)

    def micro_batches(self, examples: int) -> list[int]:
        """Sizes of the micro-batches of `examples` examples: see `Request.micro_batches`."""
        return self.request.micro_batches(examples)

    def micro_batch_count(self, examples: int) -> int:
        return -(-examples // self.request.micro_batch)

    @property
    def step_launches(self) -> list[Launch]:
        """The launches of a step, in order: of a whole mini-batch where the plan trains, of a prediction otherwise."""
        kind = Kind.PREDICT if self.request.optimizer is None else Kind.TRAIN
        sizes = self.micro_batches(self.request.batch_size)
        programs = [self.program(kind, n, first=index == 0 or kind is Kind.PREDICT) for index, n in enumerate(sizes)]
        if kind is Kind.PREDICT:
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

    def live_bytes(self, kind: Kind = Kind.TRAIN) -> list[tuple[str, int]]:
        """(layer, bytes of temporaries alive) at each launch of the largest micro-batch: the timeline of a step."""
        program = self.program(kind)
        launches, lives = program.micro, arena.lifetimes(program.micro, [program.y.buffer])
        return [
            (launch.layer, sum(buffer.nbytes for buffer in arena.alive(lives, at)))
            for at, launch in enumerate(launches)
        ]

    def traffic(self, examples: int | None = None, ranges: RangeMode = RangeMode.OBSERVED) -> Traffic:
        """Bytes that an update from a mini-batch of `examples` (by default a full one) moves, where quantized tensors
        get their `ranges` so."""
        sizes = self.micro_batches(examples or self.request.batch_size)
        moved = Traffic.of(self.program(Kind.TRAIN, sizes[0], ranges).launches)
        for n, times in Counter(sizes[1:]).items():
            moved += Traffic.of(self.program(Kind.TRAIN, n, ranges, first=False).micro, times)
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
            "launches": {str(key): len(p.launches) for key, p in self.programs.items() if key.first},
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
