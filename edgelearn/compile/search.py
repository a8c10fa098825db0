"""Search for the fastest plan within budgets: candidates read off the launches, and their choice as a linear program.

For each activation of a program that stores everything, a candidate lists the strategies that it can have, what each
costs and needs, and from when to when the tensor would be on the device.

In the integer linear program a binary variable for each option of each activation says whether it is selected. Every
tensor that is read, or needed by a selected option, must have a selected option. That is the project selection behind
checkpointing (T. Chen et al. 2016, arXiv 1604.06174) with more strategies, and for bytes stored it is exact. Bytes
alive in the backward pass depend on execution order; here, as in checkpointing by hand, each block is restored when the
backward pass enters it, so for the peak the program is a model, and the search compares it with the real plan. HiGHS
solves it (Q. Huangfu and J. Hall 2018, "Parallelizing the dual revised simplex method").
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import sha256
from math import inf
from typing import Any, Literal, cast

import numpy as np

from edgelearn import tuned
from edgelearn.device import Device
from edgelearn.display import megabytes, plural
from edgelearn.errors import PlanError
from edgelearn.graph.rewrites import ancestors, invertible_streams
from edgelearn.launch import Access, Buffer, Launch, Many, Role, Transfer
from edgelearn.ops import Traits

from .lower import Layout, Lowering
from .memory import ActivationMemory, Encoding, Invert, Mask, MemoryStrategy, Recompute, Store, steps_of
from .plan import Kind, Plan, ProgramKey, account
from .policies import EXACT, cuts
from .rematerialisation import await_writes, prefetch, reads_of, replays
from .request import Request
from .storage import Storage, alive, lifetimes

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
COUNTS = {
    "device": "all device memory that the plan holds",
    "peak": "activations and workspace at their most, as allocated, and the input",
    "stored": "activations held between the forward and the backward pass",
    "process": "growth of the process, as predicted",
}


@dataclass(frozen=True)
class Budget:
    """A limit on the memory of a plan.

    Arguments:
    - `nbytes`: the limit, in bytes.
    - `count`: what it limits, one of COUNTS: `"device"` (default), `"process"` (see
      `Plan.process_memory`), or of a training `"peak"` or `"stored"`, by the definitions of `accounting`.

    Raises PlanError for another count.
    """

    nbytes: int
    count: str = "device"

    def __post_init__(self) -> None:
        if self.count not in COUNTS:
            raise PlanError(f"A budget counts {', '.join(COUNTS)}, got '{self.count}'.")

    @classmethod
    def of(cls, value: Budget | int | str) -> Budget:
        """A budget from bytes, or from text such as "60 MB", "20 MiB peak", "8MB stored" or "80 MB process". Raises
        PlanError for other values."""
        if isinstance(value, Budget):
            return value
        match = re.fullmatch(rf"([\d.]+) *([a-z]*?)(?: *\b({'|'.join(COUNTS)}))?", str(value).strip().lower())
        try:
            if match:
                return cls(int(float(match[1]) * UNITS[match[2]]), match[3] or "device")
        except (ValueError, KeyError, OverflowError):
            pass
        raise PlanError(
            f"Expected a budget such as '60 MB' or '60 MiB' of device memory, '8 MB stored', '20 MB peak', "
            f"'80 MB process', or several with commas, got '{value}'."
        )

    def used_by(self, plan: Plan) -> int:
        """Bytes of `plan` that count: 0 where nothing is trained and activations count."""
        if self.count == "device":
            return plan.peak_bytes
        if self.count == "process":
            return plan.process_bytes
        return getattr(account(plan), self.count) if plan.request.optimizer else 0

    def fits(self, plan: Plan) -> bool:
        return self.used_by(plan) <= self.nbytes

    def __str__(self) -> str:
        return f"{megabytes(self.nbytes)} ({COUNTS[self.count]})"


BudgetLike = Budget | int | str | Sequence[Budget | int | str]


def budgets(value: BudgetLike) -> list[Budget]:
    """Limits that all must be met, such as the two of "8 MB stored, 20 MB peak". Raises PlanError if there are none."""
    if isinstance(value, str):
        value = value.split(",")
    limits = [Budget.of(one) for one in (value if isinstance(value, Sequence) else [value])]
    if not limits:
        raise PlanError("Expected at least one budget, got none: None stands for no limit.")
    return limits


BYTE = 0.1  # bytes from memory for each FLOP at best: between a CPU's and a GPU's
PAGING = 1e9  # bytes/s between the device and pages outside it, unless that was measured
LAUNCH = 5e-6  # seconds; devices don't say
CLOCK_MHZ = 1000  # of devices whose drivers don't say (Intel's gives 0 for some CPUs)


@dataclass(frozen=True)
class LaunchTimes:
    """Predicts the seconds of launches and steps.

    - `origin`: where the figures are from.
    - `flops`, `bandwidth`: FLOP/s and bytes/s; a launch that wasn't measured takes the longer of the two.
    - `between`: seconds that a step takes for each launch besides (default 5 µs).
    - `fixed`: seconds that a step takes once, for inputs and results (default 0).
    - `measured`: seconds by `key` of the launch (default none).
    - `paging`: bytes/s to and from offloaded pages; launches that run meanwhile are not considered (default 1 GB/s).
    """

    origin: str
    flops: float
    bandwidth: float
    between: float = LAUNCH
    fixed: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict, repr=False)
    paging: float = PAGING

    @classmethod
    def of(cls, device: Device, table: tuned.MeasuredTimes | None = None) -> LaunchTimes:
        """Times by `table`, or by the one measured earlier on this kind of device; the roofline alone if there is none.
        Raises FormatError for a damaged file."""
        clock, width = device.clock_mhz or CLOCK_MHZ, 128 if device.is_gpu else device.vector_width
        flops = device.compute_units * clock * 1e6 * width * 2
        table = table or tuned.load_times(device)
        if table is None:
            text = f"not measured: the roofline of compute units, a clock of {clock} MHz and vector width"
            return cls(text, flops, flops * BYTE)
        text = f"measured on {device.id} until {table.date}, {plural(len(table.seconds), 'launch')}"
        return cls(text, flops, flops * BYTE, table.between, table.fixed, table.seconds)

    def seconds(self, launch: Launch) -> float:
        measured = self.measured.get(launch_key(launch))
        return self.between + (self._estimated(launch) if measured is None else measured)

    def step(self, plan: Plan) -> float:
        """Seconds of a step of `plan`."""
        return self.fixed + sum(map(self.seconds, plan.step_launches))

    def known(self, plan: Plan) -> float:
        """The share of a step's launches that were measured."""
        launches = plan.step_launches
        return sum(launch_key(launch) in self.measured for launch in launches) / len(launches)

    def _estimated(self, launch: Launch) -> float:
        if isinstance(launch, Transfer):
            return launch.moved / self.paging
        return max(launch.flops / self.flops, launch.nbytes / self.bandwidth)


def launch_key(launch: Launch) -> str:
    """Identifies launches that take equally long: the kernel, and a digest of sizes and numbers."""
    return _key(
        launch.kernel, launch.source, launch.macros, launch.grid, launch.group, tuple(map(_size, launch.arguments))
    )


@cache
def _key(kernel: str, *more: object) -> str:
    return f"{kernel} {sha256(repr(more).encode()).hexdigest()[:16]}"


def _size(argument: Access | Many | int | float) -> object:
    if isinstance(argument, Many):
        return sum(access.nbytes for access in argument.accesses)
    return argument.nbytes if isinstance(argument, Access) else argument


@dataclass(frozen=True)
class Option:
    """A strategy that a tensor can have.

    - `held`: bytes held on the device between the passes.
    - `seconds`: time that it adds to a step.
    - `at`: launch of the backward pass from which the whole tensor is on the device.
    - `needs`: tensors that it is restored from.
    - `streams`: tensors that these come from, which must not be recomputed, since that may need this one.
    """

    strategy: MemoryStrategy
    held: int
    seconds: float
    at: int
    needs: frozenset[Buffer] = frozenset()
    streams: frozenset[Buffer] = frozenset()


@dataclass(frozen=True)
class ActivationBuffer:
    """A temporary of the forward pass that can be restored.

    - `names`: layers whose output it is, in order; none for tensors inside stages.
    - `values_read`, `is_read`: the backward pass reads its values; it reads them or their mask.
    - `entry`, `last`: launches of the backward pass from which it would be restored, and until which it is needed.
    - `options`: at least one.
    """

    buffer: Buffer
    names: tuple[str, ...]
    values_read: bool
    is_read: bool
    entry: int
    last: int
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """All that the planner chooses from.

    - `activations`: by buffer.
    - `stored`: bytes held between the passes besides these.
    - `live`: bytes on the device besides these at each launch of the backward pass.
    - `block_ends`: tensors between blocks. Where they are available, each block can be restored by itself.
    """

    activations: dict[Buffer, ActivationBuffer]
    stored: int
    live: list[int]
    block_ends: list[ActivationBuffer]

    def activation_memory(self, chosen: Mapping[Buffer, Option]) -> ActivationMemory:
        """Strategies by layer. Of layers that share a tensor the last one gets its strategy; tensors without one aren't
        needed."""
        memory: dict[str, MemoryStrategy] = {}
        for buffer, activation in self.activations.items():
            strategy = chosen[buffer].strategy if buffer in chosen else Recompute()
            if activation.names and not strategy.stores:
                memory |= dict.fromkeys(activation.names, Recompute()) | {activation.names[-1]: strategy}
        return memory


def find_candidates(
    request: Request, device: Device, traits: Traits, launch_times: LaunchTimes, allow: Sequence[Encoding] = ()
) -> Candidates:
    """The candidates of a training's first micro-batch: exact strategies on the device, and those in `allow`. Inverses
    that aren't exact are left out."""
    return _Finder(replace(request, activation_memory={}), device, traits, launch_times, (Mask(), *allow)).candidates()


class _Finder:
    def __init__(
        self, request: Request, device: Device, traits: Traits, times: LaunchTimes, encodings: Sequence[Encoding]
    ) -> None:
        key = ProgramKey(Kind.TRAIN, request.micro_batch)
        lowering = Lowering(request, Storage(request, device.alignment), traits, key)
        program, remat = lowering.program, lowering.rematerialiser
        self.remat, self.forward, self.backward, self.loss_at = remat, remat.forward, remat.backward, remat.loss_at
        self.request, self.network, self.times, self.encodings = request, request.network, times, encodings
        self.inputs = {x.buffer for x in program.inputs.values()}
        self.tensors = {name: tensor.buffer for name, tensor in remat.tensors.items()}
        streams, self.inverted = invertible_streams(request.network)
        self.streams = {self.tensors[name] for name in streams if name in self.tensors}
        self.cuts = cuts(request.network)
        self.reads: dict[Buffer, list[int]] = {}  # launches of the backward pass
        for number, launch in enumerate(self.backward):
            for buffer in launch.reads:
                self.reads.setdefault(buffer, []).append(number)

    def candidates(self) -> Candidates:
        replayed = self._replays()
        needs = {b: frozenset(reads_of(launches or ())) & replayed.keys() for b, launches in replayed.items()}
        activations = self._activations(list(replayed), needs)
        compared = {self.tensors[node.name] for node in self.network.nodes.values() if node.op.compares}
        only_recomputed = compared if any(not encoding.exact for encoding in self.encodings) else set()
        inverses = self._inverses(needs)
        sources = {b for inverse in inverses.values() for b in self._sources(inverse.needs, needs)}
        for b, activation in activations.items():
            launches, options = replayed[b], []
            if launches is not None:
                options.append(Option(Recompute(), 0, self._seconds(launches), activation.entry, needs[b]))
            if b not in only_recomputed:
                if activation.names or not options:
                    options.append(Option(Store(), b.nbytes, 0.0, 0))
                options += [inverses[b]] if b in inverses else []
                options += self._encodings(activation, b in sources)
            activations[b] = replace(activation, options=tuple(options))
        ends = {self.tensors[name] for cut in self.cuts for name in cut if name in self.tensors}
        return Candidates(activations, *self._besides(activations), [a for b, a in activations.items() if b in ends])

    def _replays(self) -> dict[Buffer, Sequence[Launch] | None]:
        """The launches that recompute each tensor; None for those that can't be, and that recomputing others reads."""
        inputs = {self.tensors.get(name) for name in self.network.inputs}
        named = set(self.tensors.values())
        found: dict[Buffer, Sequence[Launch] | None] = {
            buffer: replay.launches
            for buffer, replay in replays(self.forward, set(), {}, {}).items()
            if buffer not in inputs and (buffer in named or buffer not in self.reads)
        }
        read = {b for launches in found.values() for b in reads_of(launches or ())} - set(found) - set(self.reads)
        written = [b for launch in self.forward for b in launch.writes if b.role is Role.TEMPORARY]
        return found | dict.fromkeys(b for b in written if b in read)

    def _activations(
        self, buffers: Sequence[Buffer], needs: Mapping[Buffer, frozenset[Buffer]]
    ) -> dict[Buffer, ActivationBuffer]:
        """Without options."""
        names: dict[Buffer, list[str]] = {}
        for name in (*self.network.nodes, *steps_of(self.network)):
            if name in self.tensors:
                names.setdefault(self.tensors[name], []).append(name)
        values = {buffer for launch in self.backward for buffer in launch.reads_values}
        entry = self._entries(buffers)
        last = {b: max(entry[b], *self.reads.get(b, [0])) for b in buffers}
        for b, sources in needs.items():
            for source in sources:
                last[source] = max(last[source], entry[b])
        return {
            b: ActivationBuffer(b, tuple(names.get(b, ())), b in values, b in self.reads, entry[b], last[b])
            for b in buffers
        }

    def _entries(self, buffers: Iterable[Buffer]) -> dict[Buffer, int]:
        """The launch at which the backward pass enters the block that each buffer is in, or is the input of."""
        writes = {b: number for number, launch in enumerate(self.forward) for b in launch.writes}
        borders = sorted(
            {max(writes[b] if (b := self.tensors.get(name)) in writes else -1 for name in cut) for cut in self.cuts}
        )
        blocks = {buffer: bisect_right(borders, writes[buffer]) for buffer in buffers}
        first = dict.fromkeys(blocks.values(), len(self.backward) - 1)
        for buffer, block in blocks.items():
            first[block] = min(first[block], *self.reads.get(buffer, [first[block]]))
        return {buffer: first[block] for buffer, block in blocks.items()}

    def _inverses(self, needs: Mapping[Buffer, frozenset[Buffer]]) -> dict[Buffer, Option]:
        """Exact inverses, by the tensors that they restore."""
        found = {}
        for name, layer in self.inverted.items():
            inverse = self.remat.inverses.get(layer)
            rounded = any(self.request.precision.format("activations", x) for x in (name, layer))
            if inverse and self.network.nodes[layer].op.inverts_exactly and not rounded:
                read = frozenset(reads_of(inverse.launches)) & needs.keys()
                seconds, streams = self._seconds(inverse.launches), self._sources(read, needs) & self.streams
                found[inverse.buffer] = Option(Invert(layer), 0, seconds, inverse.at, read, streams)
        return found

    def _encodings(self, activation: ActivationBuffer, exact: bool) -> list[Option]:
        """The encodings that a tensor can have, only `exact` ones if streams come from it."""
        found = []
        for encoding in self.encodings if activation.names else ():
            if exact and not encoding.exact:
                continue
            if not encoding.restores_values and (activation.values_read or not activation.is_read):
                continue
            try:
                held, encode, decode = self.remat.encode(activation.buffer, encoding)
            except PlanError:
                continue
            nbytes = held.nbytes if held.role is Role.TEMPORARY else 0
            seconds = self._seconds([*await_writes(encode), *prefetch(decode)])
            found.append(Option(encoding, nbytes, seconds, activation.entry))
        return found

    def _sources(self, buffers: Iterable[Buffer], needs: Mapping[Buffer, frozenset[Buffer]]) -> frozenset[Buffer]:
        """The buffers and what they are recomputed from, as far as streams."""
        return frozenset(ancestors(buffers, lambda buffer: () if buffer in self.streams else needs[buffer]))

    def _seconds(self, launches: Iterable[Launch]) -> float:
        return sum(map(self.times.seconds, launches))

    def _besides(self, activations: Mapping[Buffer, ActivationBuffer]) -> tuple[int, list[int]]:
        """Bytes besides the activations: held between the passes, and on the device at each launch of the backward
        pass."""
        lives = [life for life in lifetimes(self.forward + self.backward) if life.buffer not in activations]
        stored = sum(life.buffer.nbytes for life in lives if life.first < self.loss_at < life.last)
        stored += sum(x.nbytes for x in self.inputs if x in self.reads)
        indices = range(len(self.forward), len(self.forward) + len(self.backward))
        return stored, [sum(buffer.nbytes for buffer in alive(lives, index)) for index in indices]


NODES = 1000  # of the search tree that HiGHS may visit: unlike a time limit, it gives the same result every time
GAP = 1e-3  # relative optimality gap: times are known no better
BYTES_GAP = 1e-4  # the same where bytes are minimised

Measure = Literal["stored", "live"]  # bytes held between the passes, or bytes alive at once in the backward pass


def solve(
    candidates: Candidates, stored: float = inf, live: float = inf, minimise: Measure | None = None
) -> ActivationMemory | None:
    """The fastest strategies within limits, or those of the fewest bytes.

    Arguments:
    - `stored`: most bytes held between the passes (default: no limit).
    - `live`: most bytes alive at once in the backward pass (default: no limit).
    - `minimise`: these bytes instead of the time; then the fastest of the smallest.

    Returns None if nothing fits, or nothing was found within NODES.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    # Variables are the options in order, then the most megabytes alive
    options = [(a, option) for a in candidates.activations.values() for option in a.options]
    peak = len(options)
    held = {i: option.held / 1e6 for i, (_, option) in enumerate(options) if option.held}
    rows, bounds = _constraints(candidates, options, held, stored, live < inf or minimise == "live")
    weights = np.array([1e3 * option.seconds for _, option in options] + [0.0])  # milliseconds
    if minimise:  # megabytes; time breaks ties
        weights *= 1e-3 / max(weights.sum(), 1e-9)
    if minimise == "live":
        weights[-1] = 1.0
    elif minimise == "stored":
        weights[list(held)] += list(held.values())
    coefficients = [value for row in rows for value in row.values()]
    columns = [column for row in rows for column in row]
    starts = np.cumsum([0, *map(len, rows)])
    matrix = csr_array((coefficients, columns, starts), shape=(len(rows), peak + 1))
    most, lower, upper = cast("Any", (np.array(bounds), np.zeros(peak + 1), np.ones(peak + 1)))
    upper[-1] = min(live, 1e15) / 1e6
    result = milp(
        weights,
        constraints=LinearConstraint(matrix, -np.inf, most),
        integrality=[1] * peak + [0],
        bounds=Bounds(lower, upper),
        options={"node_limit": NODES, "mip_rel_gap": GAP if minimise is None else BYTES_GAP},
    )
    if result.x is None:
        return None
    selected = [options[i] for i in np.flatnonzero(np.round(result.x[:-1]))]
    # Where bytes are minimised, several options of one tensor may be selected: the fastest is taken.
    selected.sort(key=lambda pair: (not _gives_values(pair[1]), pair[1].seconds))
    return candidates.activation_memory({a.buffer: option for a, option in reversed(selected)})


def _constraints(
    candidates: Candidates, options: Sequence[tuple[ActivationBuffer, Option]], held: dict[int, float], stored: float,
    limits_live: bool,
) -> tuple[list[dict[int, float]], list[float]]:  # fmt: skip
    """Rows of coefficients by variable, and an upper bound of each.

    Tensors that the backward pass reads, and those that options need, must be available; inversion goes from stream to
    stream. What is `held` must fit the bytes `stored`. If bytes alive are limited, ends of blocks must be available, or
    recomputed from tensors that are.
    """
    variables = {(a.buffer, option.strategy): i for i, (a, option) in enumerate(options)}
    activations = candidates.activations.values()
    rows: list[dict[int, float]] = []
    bounds: list[float] = []

    def add(row: dict[int, float], bound: float) -> None:
        rows.append(row)
        bounds.append(bound)

    def any_of(activation: ActivationBuffer, condition: Callable[[Option], bool]) -> dict[int, float]:
        """The options of an activation that meet a condition, to be selected at least once."""
        return {variables[activation.buffer, o.strategy]: -1.0 for o in activation.options if condition(o)}

    def among(buffers: Container[Buffer]) -> list[ActivationBuffer]:
        """In a fixed order, so that the result is the same every time."""
        return [a for a in activations if a.buffer in buffers]

    for a in activations:
        if a.is_read:
            add(any_of(a, _gives_values if a.values_read else _gives_mask), -1.0)
        for option in a.options:
            selected = {variables[a.buffer, option.strategy]: 1.0}
            for source in among(option.needs):
                add(selected | any_of(source, _gives_values), 0.0)
            for stream in among(option.streams):
                add(selected | any_of(stream, _is_available), 0.0)
    if stored < inf:
        add(held, (stored - candidates.stored) / 1e6)
    if not limits_live:
        return rows, bounds
    for end in candidates.block_ends:
        needs = frozenset().union(*(option.needs for option in end.options if option.strategy.recomputes))
        for source in among(needs):
            add(any_of(end, _is_available) | any_of(source, _is_available), -1.0)
    for index, live in enumerate(candidates.live):
        row = {len(options): -1.0}
        for variable, (a, option) in enumerate(options):
            nbytes = a.buffer.nbytes * (option.at <= index <= a.last)
            nbytes += option.held * (index <= option.at and option.at > 0)
            if nbytes:
                row[variable] = nbytes / 1e6
        add(row, -live / 1e6)
    return rows, bounds


def _gives_mask(option: Option) -> bool:
    return True


def _gives_values(option: Option) -> bool:
    return option.strategy.restores_values


def _is_available(option: Option) -> bool:
    """True if it gives values without recomputing."""
    return option.strategy.restores_values and not option.strategy.recomputes


ROUNDS = 8  # plans made to come close to a budget
CLOSE = 0.01  # of the budget: near enough
MEASURES: tuple[Measure, ...] = ("stored", "live")

Progress = Callable[[str], None]


class Search:
    """A search among real plans, a few dozen at most.

    Arguments:
    - `layout`: of the plan as requested.
    - `budgets`: limits that all must be met.
    - `launch_times`: None for those known of the device.
    - `allow`: strategies to choose from besides exact ones that stay on the device.
    - `progress`: called with a line for each plan that is tried.
    """

    def __init__(
        self,
        layout: Layout,
        budgets: Sequence[Budget],
        launch_times: LaunchTimes | None,
        allow: Sequence[Encoding],
        progress: Progress,
    ) -> None:
        self.layout, self.budgets, self.allow, self.progress = layout, budgets, allow, progress
        self.first = layout.plan
        self._launch_times = launch_times
        self.tried = [self.first]
        self._by_micro_batch: dict[int, Search] = {self.first.request.micro_batch: self}

    @cached_property
    def launch_times(self) -> LaunchTimes:
        return self._launch_times or LaunchTimes.of(self.layout.device)

    def run(self) -> Plan | None:
        """The first plan if it fits, else the fastest one found that does."""
        if self._fits(self.first):
            return self.first
        if not self._may_choose:
            return None
        for candidates in self._candidates:
            self._approach(candidates)
        if not any(map(self._fits, self.tried)):
            list(self._smallest_plans())
        return min(filter(self._fits, self.tried), key=self.launch_times.step, default=None)

    def is_feasible(self) -> bool:
        """True if a plan fits, as far as is known without looking for the fastest one."""
        impossible = any(self._limit(budget) < 0 for budget in self.budgets)
        if not any(map(self._fits, self.tried)) and self._may_choose and not impossible:
            for plan in self._smallest_plans():
                if self._fits(plan):
                    break
        return any(map(self._fits, self.tried))

    @property
    def is_hopeless(self) -> bool:
        """True if no strategies make a plan that fits, since a single launch uses more."""
        launches = [launch for program in self.first.programs.values() for launch in program.launches]
        used = [{a.buffer for a in launch.accesses if a.buffer.role is Role.TEMPORARY} for launch in launches]
        most = max(sum(buffer.nbytes for buffer in buffers) for buffers in used)
        return any(self._limit(budget) < most for budget in self.budgets if _measure(budget) == "live")

    def smallest(self, budget: Budget) -> int:
        """The fewest of the bytes that `budget` counts, of the plans tried so far."""
        return min(map(budget.used_by, self.tried))

    def most_examples(self, plans: Sequence[Plan]) -> int:
        """A bound on the micro-batch of which a plan of this kind fits, from `plans` of the search's own: activations
        and inputs shrink at most with the examples, partial sums may go altogether, and the rest stays."""
        size = self.first.request.micro_batch
        partial = self.first.bytes_by_role.get(Role.PARTIAL, 0)
        inputs = self.first.storage.input_bytes
        stays = self.first.peak_bytes - self.first.arena_bytes - partial - inputs
        bounds = []
        for budget in self.budgets:
            used = min(map(budget.used_by, plans))
            fixed, goes = (stays, partial) if budget.count == "device" else (0, 0)
            bounds.append(size * (budget.nbytes - fixed) / max(1, used - fixed - goes))
        return int(min([size, *bounds]))

    def with_micro_batch(self, size: int) -> Search:
        """The same search for micro-batches of another size."""
        if size not in self._by_micro_batch:
            self._by_micro_batch[size] = self.with_request(replace(self.first.request, micro_batch=size))
        return self._by_micro_batch[size]

    def with_request(self, request: Request) -> Search:
        """The same search for another request."""
        layout = Layout(request, self.layout.device, self.layout.traits)
        return Search(layout, self.budgets, self._launch_times, self.allow, self.progress)

    @property
    def _may_choose(self) -> bool:
        request = self.first.request
        return request.optimizer is not None and not request.activation_memory

    @property
    def stores_all(self) -> bool:
        """True if the first plan fits."""
        return self._fits(self.first)

    def _fits(self, plan: Plan) -> bool:
        return all(budget.fits(plan) for budget in self.budgets)

    @cached_property
    def _candidates(self) -> list[Candidates]:
        """Exact strategies alone come first: with more of them, the solver may reach its limits before the optimum."""
        request, device, traits = self.first.request, self.layout.device, self.layout.traits
        return [
            find_candidates(request, device, traits, self.launch_times, allow)
            for allow in ([(), self.allow] if self.allow else [()])
        ]

    def _smallest_plans(self) -> Iterator[Plan]:
        """Try the plans of the fewest bytes, whatever they take, one after the other."""
        for candidates in self._candidates:
            for measure in MEASURES:
                if measure in map(_measure, self.budgets):
                    yield self._try(solve(candidates, minimise=measure))
        for policy in EXACT[1:]:  # the first plan stores everything
            yield self._try(policy(self.first.request.network))

    def _approach(self, candidates: Candidates) -> None:
        """Solve, and move the limits by what the plan is off, until it is close to a budget."""
        limits = [self._limit(budget) for budget in self.budgets]
        seen: list[ActivationMemory] = []
        for _ in range(ROUNDS):
            least: dict[Measure, int] = {}
            for budget, limit in zip(self.budgets, limits, strict=True):
                least[_measure(budget)] = min(limit, least.get(_measure(budget), limit))
            memory = solve(candidates, **least)
            if memory is None or memory in seen:
                return
            seen.append(memory)
            plan = self._try(memory)
            spare = [budget.nbytes - budget.used_by(plan) for budget in self.budgets]
            fits = min(spare) >= 0
            if fits and any(s < CLOSE * b.nbytes for s, b in zip(spare, self.budgets, strict=True)):
                return
            limits = [limit + s * (fits or s < 0) for limit, s in zip(limits, spare, strict=True)]

    def _limit(self, budget: Budget) -> int:
        """The limit of the solver's measure: that of "live" is about the arena alone."""
        besides = budget.used_by(self.first) - self.first.arena_bytes
        return budget.nbytes - (besides if _measure(budget) == "live" else 0)

    def _try(self, memory: ActivationMemory | None) -> Plan:
        """Lay out a plan with these strategies; the first one again if there are none."""
        if memory is None:
            return self.first
        plan = replace(self.layout.with_memory(memory), searched=True)
        self.tried.append(plan)
        sizes = ", ".join(f"{megabytes(b.used_by(plan))} of {megabytes(b.nbytes)} {b.count}" for b in self.budgets)
        self.progress(f"plan {len(self.tried)}: {sizes}")
        return plan


def _measure(budget: Budget) -> Measure:
    return "stored" if budget.count == "stored" else "live"
