"""The plan: every launch and the place of every byte, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from edgelearn.device.units import int8_speed
from edgelearn.display import Displayed
from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, Decision, Launch, Role, Traffic
from edgelearn.ops import Traits
from edgelearn.ops.quantize import Quantizer
from edgelearn.units import MB

from . import arena
from .memory.strategies.offload import Offload, offload_of
from .precision.precision import Precision, RangeMode
from .program import Kind, Program, ProgramKey
from .request import Request
from .storage import Storage


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Displayed):
    """Every launch of the programs that a session may run, and the place of every byte. Made by `make_plan`.

    Arguments:
    - `request`: what was asked for: network, sizes, optimizer, precision, activation memory.
    - `traits`: of the device that the plan is for.
    - `alignment`: bytes; all offsets are multiples of it.
    - `storage`: the tensors that live as long as the plan.
    - `programs`: by key, all that there will ever be.
    - `offsets`: of each buffer in the memory of its role, in bytes.
    - `arena_bytes`: size of the memory that temporaries share.
    - `paged_bytes`: size of the pages outside the device.
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

    @property
    def offload(self) -> Offload | None:
        """The strategy that says where pages are, if the plan has any."""
        return offload_of(self.request.activation_memory.values()) if self.paged_bytes else None

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

    @cached_property
    def observed_on_host(self) -> list[Quantizer]:
        """The quantizers whose next range the host computes."""
        return [q for q in self.storage.quantizers.values() if q.observer.on_host]

    def micro_batches(self, examples: int) -> list[int]:
        """Sizes of the micro-batches of `examples` examples: see `Request.micro_batches`."""
        return self.request.micro_batches(examples)

    def micro_batch_count(self, examples: int) -> int:
        return -(-examples // self.request.micro_batch)

    @property
    def step_launches(self) -> list[Launch]:
        """The launches of a step, in order: of an update in a plan that trains, of a prediction otherwise."""
        kind = Kind.PREDICT if self.request.optimizer is None else Kind.TRAIN
        sizes = self.micro_batches(self.request.batch_size)
        programs = [self.program(kind, n, first=index == 0 or kind is Kind.PREDICT) for index, n in enumerate(sizes)]
        if kind is Kind.PREDICT:
            return [launch for program in programs for launch in program.prepare + program.micro]
        micro = [launch for program in programs for launch in program.micro]
        return programs[0].prepare + micro + programs[0].finish

    @property
    def decisions(self) -> dict[str, Decision]:
        """Decisions about how kernels compute, by name."""
        launches = (launch for program in self.programs.values() for launch in program.launches)
        return {launch.decision.name: launch.decision for launch in launches if launch.decision}

    @property
    def tuned_count(self) -> int:
        """Number of decisions that are as tuned for this kind of device; the others are safe defaults."""
        return sum(self.traits.tuned.get(name) == decision.chosen for name, decision in self.decisions.items())

    def live_bytes(self, kind: Kind = Kind.TRAIN) -> list[tuple[str, int]]:
        """(layer, bytes of temporaries alive) at each launch of the largest micro-batch: the timeline of a step."""
        program = self.program(kind)
        launches, lives = program.micro, arena.lifetimes(program.micro, [y.buffer for y in program.outputs.values()])
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
        """JSON-able summary, which runs record."""
        r = self.request
        return {
            "batch_size": r.batch_size, "micro_batch": r.micro_batch, "batchnorm": r.batchnorm,
            "peak_bytes": self.peak_bytes, "paged_bytes": self.paged_bytes,
            "bytes": {role.value: size for role, size in self.bytes_by_role.items()},
            "decisions": {"tuned": self.tuned_count, "all": len(self.decisions)},
            "precision": r.precision.to_dict(), "compute": str(r.compute),
            "activation_memory": {name: str(strategy) for name, strategy in r.activation_memory.items()},
            "launches": {str(key): len(p.launches) for key, p in self.programs.items() if key.first},
        }  # fmt: skip

    @property
    def headline(self) -> str:
        request = self.request
        return (
            f"of '{request.network.name}', batch size {request.batch_size} in micro-batches of {request.micro_batch}: "
            f"{self.peak_bytes / MB:.2f} MB"
        )

    def __str__(self) -> str:
        """The memory plan as a table."""
        r = self.request
        lines = [f"Memory plan of '{r.network.name}': mini-batch {r.batch_size} as micro-batches of {r.micro_batch}"]
        sizes = {role.value: size for role, size in self.bytes_by_role.items()} | {"all device memory": self.peak_bytes}
        lines += [f"  {name:<26}{size / MB:>10.2f} MB" for name, size in sizes.items()]
        if self.offload:
            lines.append(f"  {'offloaded':<26}{self.paged_bytes / MB:>10.2f} MB in {self.offload.place}")
        lines.append(f"  tuned for this kind of device: {self.tuned_count} of {len(self.decisions)} kernels' sizes")
        strategies = Counter(type(s).__name__.lower() for s in r.activation_memory.values() if not s.stores)
        if strategies:
            counts = ", ".join(f"{name} {count}" for name, count in strategies.items())
            lines.append(f"  activations: {counts}, store others")
        if r.compute.type != "fp32":
            lines.append(f"  computes in {r.compute}")
        if r.precision != Precision():
            lines += [f"  {line}" for line in str(r.precision).splitlines()]
        if r.precision.stores_integers:
            lines.append(f"  {int8_speed(self.traits.find_units())}")
        return "\n".join(lines)
