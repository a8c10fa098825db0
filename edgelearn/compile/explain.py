"""Where every byte of a plan goes, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from edgelearn.launch import Buffer, Role

from .accounting import Accounting, account
from .accounting import stored as stored_buffers
from .arena import Lifetime, alive, lifetimes
from .memory.strategies import Encoding, Invert, Recompute
from .plan import Plan
from .program import Kind, Program

KEPT, WORKSPACE, GAPS = "stored", "workspace", "gaps"
ALL = "(all layers)"
BAR = 40  # characters of the longest bar


@dataclass(frozen=True)
class Share:
    """Bytes of a layer that are there for one purpose at the fullest moment: a role, and of activations and workspace
    whether they are kept, kept in fewer bits, recomputed, inverted, restored from that or needed for the moment."""

    layer: str
    purpose: str
    nbytes: int


@dataclass(frozen=True)
class Moment:
    """A stretch of launches of one layer in one pass: the most `nbytes` of activations and workspace that are alive in
    it, and of these the bytes by purpose; and the bytes `paged` out of the device by then."""

    layer: str
    forward: bool
    nbytes: int
    purposes: dict[str, int]
    paged: int = 0


@dataclass(frozen=True)
class Explanation:
    """Of a plan: `shares`, which add up to all planned bytes; `activations`, of those that the backward pass reads or
    needs (layer, name, what becomes of it, bytes); `timeline`, in order; `accounting`, where the plan trains."""

    plan: Plan = field(repr=False)
    shares: list[Share]
    activations: list[tuple[str, str, str, int]]
    timeline: list[Moment]
    accounting: Accounting | None

    def by_layer(self) -> dict[str, Counter[str]]:
        """Bytes by purpose of each layer, in the order of the network."""
        found: dict[str, Counter[str]] = {}
        for share in self.shares:
            found.setdefault(share.layer, Counter())[share.purpose] += share.nbytes
        return found

    def by_purpose(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for share in self.shares:
            found[share.purpose] += share.nbytes
        return found

    def table(self) -> str:
        """Bytes by layer, for parameters and what belongs to them, and at the fullest moment for activations."""
        lines = [f"{'layer':<32}{'parameters':>12}{'others':>12}{KEPT:>12}{'brought back':>14}{WORKSPACE:>12}"]
        for layer, found in self.by_layer().items():
            kept = sum(found[purpose] for purpose in (KEPT, Encoding.kept))
            back = sum(found[way.result] for way in (Recompute, Invert, Encoding))
            columns = found[Role.PARAMETER.value], kept, back, found[WORKSPACE] + found[GAPS]
            parameters, kept, back, work = columns
            others = found.total() - sum(columns)
            lines.append(f"{layer[:31]:<32}{parameters:>12,}{others:>12,}{kept:>12,}{back:>14,}{work:>12,}")
        return "\n".join(lines)

    def timetable(self) -> str:
        """The timeline as text: layer by layer the most megabytes (10^6) alive."""
        most = max(moment.nbytes for moment in self.timeline)
        return "\n".join(
            f"{'forward' if m.forward else 'backward':<9}{m.layer[:31]:<32}{m.nbytes / 1e6:>8.2f} MB  "
            f"{'█' * round(BAR * m.nbytes / most)}" + (f"  paged {m.paged / 1e6:.2f} MB" if m.paged else "")
            for m in self.timeline
        )

    def __str__(self) -> str:
        parts = [str(self.plan)]
        if self.accounting:
            parts.append(f"Activations, by what is counted:\n{self.accounting}")
        sizes = sorted(self.by_purpose().items(), key=lambda item: -item[1])
        lines = [f"{nbytes / 1e6:>9.2f} MB  {purpose}" for purpose, nbytes in sizes]
        parts.append("All planned bytes, at the fullest moment:\n" + "\n".join(lines))
        ways: dict[str, list[int]] = {}
        for _, _, way, nbytes in self.activations:
            ways.setdefault(way, []).append(nbytes)
        lines = [f"{sum(sizes) / 1e6:>9.2f} MB  {way}: {len(sizes)} tensors" for way, sizes in ways.items()]
        parts.append("Activations that the backward pass needs:\n" + "\n".join(lines))
        return "\n\n".join(parts)


def explain(plan: Plan) -> Explanation:
    program = plan.program(Kind.TRAIN if plan.request.optimizer else Kind.PREDICT)
    ways = _Ways(plan, program)
    lives = lifetimes(program.micro, [program.y.buffer])
    timeline = list(_timeline(program, lives, ways))
    fullest = max(range(len(program.micro)), key=lambda at: sum(x.nbytes for x in alive(lives, at)))
    there = [Share(_layer(buffer), ways[buffer], buffer.nbytes) for buffer in alive(lives, fullest)]
    gaps = plan.arena_bytes - sum(share.nbytes for share in there)
    shares = sorted([*_persistent(plan), *there], key=_order(plan))
    return Explanation(
        plan,
        [*shares, Share(ALL, GAPS, gaps)],
        ways.activations(),
        timeline,
        account(plan) if plan.request.optimizer else None,
    )


class _Ways:
    """What becomes of temporaries: by buffer of a program."""

    def __init__(self, plan: Plan, program: Program) -> None:
        trains = plan.request.optimizer is not None
        self.back = program.rematerialiser
        self.first = self.back.first if trains else len(program.micro)
        self.forward = [buffer for launch in program.micro[: self.first] for buffer in launch.writes]
        self.stored = set(stored_buffers(program)) if trains else set()

    def __getitem__(self, buffer: Buffer) -> str:
        if buffer in self.back.copies:
            return self.back.result(buffer)
        if buffer in self.back.stashed:
            return self.back.stashed[buffer].kept
        return KEPT if buffer in self.stored else WORKSPACE

    def activations(self) -> list[tuple[str, str, str, int]]:
        paged = [buffer for buffer in self.back.stashed if buffer.role is Role.PAGED]
        found = [*self.stored, *paged, *{of: copy for copy, of in self.back.copies.items()}.values()]
        order = {buffer: number for number, buffer in enumerate(dict.fromkeys(self.forward))}
        found.sort(key=lambda buffer: order.get(self.back.copies.get(buffer, buffer), -1))
        return [(_layer(buffer), buffer.name, self[buffer], buffer.nbytes) for buffer in found]


def _persistent(plan: Plan) -> Iterator[Share]:
    """Of each role, layer by layer, and what alignment leaves."""
    left = Counter({role: size for role, size in plan.bytes_by_role.items() if role is not Role.TEMPORARY})
    named = [(buffer.role, _layer(buffer), buffer.nbytes) for buffer in plan.storage.buffers]
    named += [(Role.OPTIMIZER, name.split("/")[1], t.buffer.nbytes) for name, t in plan.storage.slot_tensors.items()]
    for role, layer, nbytes in named:
        left[role] -= nbytes
        yield Share(layer, role.value, nbytes)
    for role, nbytes in left.items():
        yield Share(ALL, role.value, nbytes)


def _layer(buffer: Buffer) -> str:
    return buffer.layer or (buffer.name.split("/")[0] if "/" in buffer.name else ALL)


def _order(plan: Plan):
    place = {name: number for number, name in enumerate(plan.request.network.nodes)}
    return lambda share: place.get(share.layer, len(place))


def _timeline(program: Program, lives: list[Lifetime], ways: _Ways) -> Iterator[Moment]:
    pages = lifetimes(program.micro, role=Role.PAGED)
    moments: list[Moment] = []
    for at, launch in enumerate(program.micro):
        purposes: Counter[str] = Counter()
        for buffer in alive(lives, at):
            purposes[ways[buffer]] += buffer.nbytes
        paged = sum(buffer.nbytes for buffer in alive(pages, at))
        moment = Moment(launch.layer, at < ways.first, purposes.total(), dict(purposes), paged)
        before = moments[-1] if moments else None
        if before is None or (before.layer, before.forward) != (moment.layer, moment.forward):
            moments.append(moment)
        elif moment.nbytes > before.nbytes:
            moments[-1] = moment
    yield from moments
