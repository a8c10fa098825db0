"""Explain a plan: its bytes by layer, purpose and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from edgelearn.display import Displayed
from edgelearn.launch import Buffer, Role
from edgelearn.units import MB

from .accounting import Accounting, account
from .accounting import stored as stored_buffers
from .arena import Lifetime, alive, lifetimes
from .plan import Plan
from .program import Kind, Program

STORED, WORKSPACE, GAPS = "stored", "workspace", "gaps"
ALL = "(all layers)"
BAR = 40  # characters of the longest bar


@dataclass(frozen=True)
class Share:
    """Bytes of a layer for one purpose, at the peak of activations and workspace.

    Arguments:
    - `purpose`: a role's value, such as "parameters"; for temporaries "stored", "compressed", "recomputed", "inverted",
      "restored" or "workspace"; "gaps" for unused bytes between temporaries.
    """

    layer: str
    purpose: str
    nbytes: int


@dataclass(frozen=True)
class Moment:
    """Consecutive launches of one layer in one pass.

    Arguments:
    - `nbytes`: largest number of bytes of live temporaries; `purposes` divides them by purpose.
    - `paged`: bytes offloaded at that time.
    """

    layer: str
    forward: bool
    nbytes: int
    purposes: dict[str, int]
    paged: int = 0


class ActivationBytes(NamedTuple):
    """An activation that the backward pass reads."""

    layer: str
    name: str
    purpose: str
    nbytes: int


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Memory of a plan in detail; prints as tables.

    Arguments:
    - `plan`: the plan.
    - `shares`: bytes by layer and purpose; their sum is all planned bytes.
    - `activations`: activations that the backward pass reads.
    - `timeline`: live bytes during a micro-batch, in order.
    - `accounting`: activation memory by published definitions; None unless the plan trains.
    """

    plan: Plan = field(repr=False)
    shares: list[Share]
    activations: list[ActivationBytes]
    timeline: list[Moment]
    accounting: Accounting | None

    def by_layer(self) -> dict[str, Counter[str]]:
        """Bytes by layer (in network order) and purpose."""
        layers: dict[str, Counter[str]] = {}
        for share in self.shares:
            layers.setdefault(share.layer, Counter())[share.purpose] += share.nbytes
        return layers

    def by_purpose(self) -> Counter[str]:
        """Bytes by purpose."""
        purposes: Counter[str] = Counter()
        for share in self.shares:
            purposes[share.purpose] += share.nbytes
        return purposes

    def table(self) -> str:
        """A table of bytes by layer: persistent buffers, and temporaries at their peak."""
        rematerialisation = _program(self.plan).rematerialisation
        stored, restored = {STORED, *rematerialisation.held.values()}, set(rematerialisation.purposes.values())
        lines = [f"{'layer':<32}{'parameters':>12}{'others':>12}{STORED:>12}{'restored':>14}{WORKSPACE:>12}"]
        for layer, nbytes in self.by_layer().items():
            columns = [
                sum(nbytes[purpose] for purpose in purposes)
                for purposes in ({Role.PARAMETER.value}, stored, restored, {WORKSPACE, GAPS})
            ]
            others = nbytes.total() - sum(columns)
            parameters, kept, copies, work = columns
            lines.append(f"{layer[:31]:<32}{parameters:>12,}{others:>12,}{kept:>12,}{copies:>14,}{work:>12,}")
        return "\n".join(lines)

    def timetable(self) -> str:
        """The timeline as text: peak MB of each layer in each pass."""
        most = max(moment.nbytes for moment in self.timeline)
        return "\n".join(
            f"{'forward' if m.forward else 'backward':<9}{m.layer[:31]:<32}{m.nbytes / MB:>8.2f} MB  "
            f"{'█' * round(BAR * m.nbytes / most)}" + (f"  offloaded {m.paged / MB:.2f} MB" if m.paged else "")
            for m in self.timeline
        )

    @property
    def headline(self) -> str:
        return f"of {sum(share.nbytes for share in self.shares) / MB:.2f} MB"

    def __str__(self) -> str:
        parts = [str(self.plan)]
        if self.accounting:
            parts.append(f"Activations, by definition:\n{self.accounting}")
        sizes = sorted(self.by_purpose().items(), key=lambda item: -item[1])
        lines = [f"{nbytes / MB:>9.2f} MB  {purpose}" for purpose, nbytes in sizes]
        parts.append("All planned bytes, at the peak of activations and workspace:\n" + "\n".join(lines))
        purposes: dict[str, list[int]] = {}
        for activation in self.activations:
            purposes.setdefault(activation.purpose, []).append(activation.nbytes)
        lines = [f"{sum(n) / MB:>9.2f} MB  {purpose}: {len(n)} tensors" for purpose, n in purposes.items()]
        parts.append("Activations that the backward pass reads:\n" + "\n".join(lines))
        return "\n\n".join(parts)


def explain(plan: Plan) -> Explanation:
    """Explain the memory of a full micro-batch of training, or of prediction if the plan doesn't train."""
    program = _program(plan)
    purposes = _Purposes(plan, program)
    lives = lifetimes(program.micro, [y.buffer for y in program.outputs.values()])
    fullest = max(range(len(program.micro)), key=lambda at: sum(x.nbytes for x in alive(lives, at)))
    temporary = [Share(_layer(buffer), purposes[buffer], buffer.nbytes) for buffer in alive(lives, fullest)]
    gaps = plan.arena_bytes - sum(share.nbytes for share in temporary)
    order = {name: number for number, name in enumerate(plan.request.network.nodes)}
    shares = sorted([*_persistent(plan), *temporary], key=lambda share: order.get(share.layer, len(order)))
    return Explanation(
        plan,
        [*shares, Share(ALL, GAPS, gaps)],
        purposes.activations(),
        list(_timeline(program, lives, purposes)),
        account(plan) if plan.request.optimizer else None,
    )


def _program(plan: Plan) -> Program:
    return plan.program(Kind.TRAIN if plan.request.optimizer else Kind.PREDICT)


class _Purposes:
    """The purpose of each temporary of a program."""

    def __init__(self, plan: Plan, program: Program) -> None:
        self.program, self.activity = program, program.rematerialisation
        self.stored = set(stored_buffers(program)) if plan.request.optimizer else set()

    def __getitem__(self, buffer: Buffer) -> str:
        default = STORED if buffer in self.stored else WORKSPACE
        return self.activity.purposes.get(buffer) or self.activity.held.get(buffer) or default

    def activations(self) -> list[ActivationBytes]:
        """Stored and offloaded buffers and copies, in the order of the forward pass."""
        paged = [buffer for buffer in self.activity.held if buffer.role is Role.PAGED]
        last_copies = {original: copy for copy, original in self.activity.originals.items()}.values()
        written = [buffer for launch in self.program.micro for buffer in launch.writes]
        order = {buffer: number for number, buffer in enumerate(dict.fromkeys(written))}
        buffers = sorted(
            [*self.stored, *paged, *last_copies], key=lambda b: order.get(self.activity.originals.get(b, b), -1)
        )
        return [ActivationBytes(_layer(buffer), buffer.name, self[buffer], buffer.nbytes) for buffer in buffers]


def _persistent(plan: Plan) -> Iterator[Share]:
    """Bytes by role and layer, and the padding of each role."""
    rest = Counter({role: size for role, size in plan.bytes_by_role.items() if role is not Role.TEMPORARY})
    buffers = [(buffer.role, _layer(buffer), buffer.nbytes) for buffer in plan.storage.buffers]
    buffers += [(Role.OPTIMIZER, name.split("/")[1], t.buffer.nbytes) for name, t in plan.storage.slot_tensors.items()]
    for role, layer, nbytes in buffers:
        rest[role] -= nbytes
        yield Share(layer, role.value, nbytes)
    for role, nbytes in rest.items():
        yield Share(ALL, role.value, nbytes)


def _layer(buffer: Buffer) -> str:
    return buffer.layer or (buffer.name.split("/")[0] if "/" in buffer.name else ALL)


def _timeline(program: Program, lives: list[Lifetime], purposes: _Purposes) -> Iterator[Moment]:
    pages = lifetimes(program.micro, role=Role.PAGED)
    backward_at = program.rematerialisation.backward_at
    moments: list[Moment] = []
    for at, launch in enumerate(program.micro):
        nbytes: Counter[str] = Counter()
        for buffer in alive(lives, at):
            nbytes[purposes[buffer]] += buffer.nbytes
        paged = sum(buffer.nbytes for buffer in alive(pages, at))
        moment = Moment(launch.layer, at < backward_at, nbytes.total(), dict(nbytes), paged)
        before = moments[-1] if moments else None
        if before is None or (before.layer, before.forward) != (moment.layer, moment.forward):
            moments.append(moment)
        elif moment.nbytes > before.nbytes:
            moments[-1] = moment
    yield from moments
