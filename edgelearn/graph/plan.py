"""The plan: before anything runs, every launch of a step and the place of every byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

from edgelearn.device import Device
from edgelearn.errors import DeviceError, PlanError
from edgelearn.launch import Buffer, Decision, Role, Traffic
from edgelearn.ops import Loss, Optimizer, SoftmaxCrossEntropy, Traits

from . import arena
from .lower import Lowering, input_block
from .network import Network
from .precision import Precision
from .program import Program, Settings
from .saving import Saving, check
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
    batchnorm: str = "kept"
    loss: Loss | None = SoftmaxCrossEntropy()  # noqa: RUF009
    seed: int = 0
    precision: Precision = Precision()  # noqa: RUF009
    saving: Saving = field(default_factory=dict)


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
        launches = self.program(kind, self.request.micro_batch).micro
        lives = arena.lifetimes(launches)
        return [
            (launch.layer, sum(life.buffer.nbytes for life in lives if life.first <= index <= life.last))
            for index, launch in enumerate(launches)
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
            "peak_bytes": self.peak_bytes, "bytes": {role.value: size for role, size in self.bytes_by_role.items()},
            "decisions": {"tuned": self.tuned_count, "all": len(self.decisions)},
            "precision": r.precision.to_dict(), "saving": {name: str(way) for name, way in r.saving.items()},
            "launches": {f"{kind} {n}": len(p.launches) for (kind, n, first), p in self.programs.items() if first},
        }  # fmt: skip

    def __str__(self) -> str:
        """The memory plan as a table."""
        r = self.request
        lines = [f"Memory plan of '{r.network.name}': mini-batch {r.batch_size} as micro-batches of {r.micro_batch}"]
        lines += [f"  {role.value:<26}{size / MIB:>10.2f} MiB" for role, size in self.bytes_by_role.items()]
        lines.append(f"  {'planned peak':<26}{self.peak_bytes / MIB:>10.2f} MiB")
        lines.append(f"  tuned for this kind of device: {self.tuned_count} of {len(self.decisions)} kernels' sizes")
        if r.saving:
            ways = Counter(type(way).__name__.lower() for way in r.saving.values())
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
            kind.removeprefix(base), r.saving,
        )  # fmt: skip
        lowering = Lowering(r.network, self.storage, self.traits, settings, examples, first)
        program = self.programs[key] = lowering.program(r.optimizer)
        for part, keep in ((program.prepare, []), (program.micro, [program.y.buffer]), (program.finish, [])):
            offsets, size = arena.place(arena.lifetimes(part, keep), self.alignment)
            self.offsets |= offsets
            self.arena_bytes = max(self.arena_bytes, size)
        self.offsets |= self.storage.offsets
        self.__dict__.pop("bytes_by_role", None)


def make_plan(request: Request, device: Device, budget: int | None = None, traits: Traits | None = None) -> Plan:
    """Plan training (with an optimizer), evaluation and prediction on `device`, for its `traits` unless others are
    given.

    Raises PlanError for an impossible request or one over `budget` bytes, naming what it needs and what would fit,
    and DeviceError when the device cannot hold it. Nothing has been allocated or run by then.
    """
    plan = _lay_out(request, device, traits or Traits.of(device))
    if budget is not None and plan.peak_bytes > budget:
        raise PlanError(_over_budget(request, device, budget, plan))
    if plan.peak_bytes > device.memory:
        raise DeviceError(
            f"The plan needs {plan.peak_bytes:,} bytes, but {device.id} has {device.memory:,}. "
            f"Use a smaller micro-batch (now {request.micro_batch}), train fewer layers, or choose another device."
        )
    role, size = max(plan.bytes_by_role.items(), key=lambda item: item[1])
    if size > device.largest_buffer:
        raise DeviceError(
            f"The plan needs {size:,} bytes of {role.value} in one piece, but {device.id} gives at most "
            f"{device.largest_buffer:,}. Use a smaller micro-batch (now {request.micro_batch})."
        )
    return plan


def _lay_out(request: Request, device: Device, traits: Traits) -> Plan:
    network, micro = request.network, request.micro_batch
    if request.batch_size < 1 or micro < 1:
        raise PlanError(f"Batch sizes are at least 1, not {request.batch_size} and {micro}.")
    if micro > request.batch_size:
        raise PlanError(f"A micro-batch of {micro} is larger than the mini-batch of {request.batch_size}.")
    if request.batchnorm not in ("kept", "batch"):
        raise PlanError(f"batchnorm is 'kept' or 'batch', not '{request.batchnorm}'.")
    if not 0 <= request.seed < 1 << 64:
        raise PlanError(f"A seed is a whole number from 0 to 2**64 - 1, not {request.seed}.")
    if not network.nodes:
        raise PlanError(f"The network '{network.name}' has no layers.")
    check(network, request.saving, request.precision)
    trained = [name for name in network.parameters if name in network.trainable] if request.optimizer else []
    if request.optimizer and not trained:
        raise PlanError("Nothing to train: every parameter is frozen. Unfreeze some, e.g. network.unfreeze('dense').")
    storage = Storage(network, trained, request.optimizer, device.alignment, micro, input_block(network))
    plan = Plan(request, traits, device.alignment, storage, frozenset(network.trainable))
    if request.optimizer:
        sizes = plan.micro_batches(request.batch_size)
        for mode in request.precision.modes(training=True):
            for index, n in enumerate(sizes[:2] + sizes[-1:]):
                plan.program(f"train{mode}", n, index == 0)
    for mode in request.precision.modes(training=False):
        if request.loss:
            plan.program(f"evaluate{mode}", micro)
        plan.program(f"predict{mode}", micro)
    return plan


def _over_budget(request: Request, device: Device, budget: int, plan: Plan) -> str:
    least = plan
    if request.micro_batch > 1:
        least = _lay_out(replace(request, micro_batch=1), device, plan.traits)
    advice = (
        f"A micro-batch of 1 would need {least.peak_bytes:,} bytes"
        + ("." if least.peak_bytes <= budget else ", still too much: freeze more layers or use a smaller network.")
        if request.micro_batch > 1
        else "Freeze more layers, use plain SGD (no optimizer state) or a smaller network."
    )
    return f"The plan needs {plan.peak_bytes:,} bytes, over the budget of {budget:,}. {advice}\n{plan}"
