"""The plan: every launch and the place of every byte, before anything runs, and accounts of it.

Published figures of activation memory use several definitions without naming them: `account` has them side by side.
`explain` accounts for all planned bytes by layer, purpose and time. The memory of a process that trains by a plan is
predicted by constants of PoCL 3 on a CPU, whose device memory is memory of the process, with kernels that are in its
cache. They were fitted to the growth of processes over one that has the driver open: see docs/results/memory.md.

>>> print(account(make_plan(Request(mobilenet_v2(), optimizer=SGD(0.1), batchnorm="batch"), device)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from math import prod
from textwrap import wrap
from typing import NamedTuple

from edgelearn.device import int8_speed
from edgelearn.display import MB, Displayed, plural
from edgelearn.errors import PlanError
from edgelearn.graph.network import Network
from edgelearn.launch import Buffer, Decision, Launch, Role, Traffic
from edgelearn.ops import Activation, BatchNormalization, Conv2D, DepthwiseConv2D, Traits
from edgelearn.ops.quantize import Quantizer
from edgelearn.ops.tensor import Tensor
from edgelearn.tables import WIDTH, Table

from . import storage
from .memory import Offload, offload_of
from .page import Fusion, LaunchFacts, LayerFacts, PlanFacts, PlanPage, TensorFacts, block_of
from .precision import Precision, RangeMode
from .rematerialisation import Rematerialisation
from .request import Request
from .storage import Lifetime, Storage, alive, lifetimes

DRIVER = 50_000_000  # opening PoCL and its compiler, once in a process: mostly pages of their libraries
PROGRAM = 400_000  # a program that PoCL has loaded
LAUNCH = 5_000  # objects of a launch: its plan, arguments and kernel
SEARCH = 45_000_000  # SciPy and its solver, once a budget made the planner search
FIT_COPIES = 3  # of the weights with Model.fit: the model's, and two while they are sent to the device
SESSION_COPIES = 2  # with a Session whose caller drops the weights


@dataclass(frozen=True)
class ProcessMemory:
    """Terms of the predicted growth of a process, in bytes. It prints as a table in MB.

    Arguments:
    - `device`: memory of the device, if it is the process's; 0 on a GPU.
    - `pages`: offloaded activations in the host's memory.
    - `programs`: compiled kernels as the driver holds them.
    - `launches`: objects of the plan's launches.
    - `weights`: copies of all weights on the host.
    - `search`: the solver, if a budget made the planner search.
    """

    device: int
    pages: int
    programs: int
    launches: int
    weights: int
    search: int

    @property
    def total(self) -> int:
        return self.device + self.pages + self.programs + self.launches + self.weights + self.search

    def __str__(self) -> str:
        terms = {
            "device memory": self.device, "offloaded pages": self.pages, "programs": self.programs,
            "launches": self.launches, "copies of weights": self.weights, "solver": self.search, "process": self.total,
        }  # fmt: skip
        return "\n".join(f"{size / MB:>9.2f} MB  {name}" for name, size in terms.items())


def predicted(
    device: int, pages: int, compiled: Iterable[Launch], launches: int, weights: int, searched: bool
) -> ProcessMemory:
    """The prediction from a plan's facts.

    Arguments:
    - `device`, `pages`, `weights`: bytes.
    - `compiled`: launches whose programs a session compiles at its start.
    - `launches`: number of launches of all programs.
    - `searched`: the planner searched for the plan in this process.
    """
    programs = {(run.source, run.kernel, run.macros, run.group) for run in compiled if run.source}
    return ProcessMemory(device, pages, PROGRAM * len(programs), LAUNCH * launches, weights, SEARCH if searched else 0)


class Kind(Enum):
    """The work that a program does on a micro-batch."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


@dataclass(frozen=True)
class ProgramKey:
    """Names a program of a plan.

    Arguments:
    - `kind`: what it does.
    - `examples`: size of the micro-batch.
    - `ranges`: how quantized tensors get their ranges.
    - `first`: the micro-batch begins a mini-batch, so that gradients start anew.
    """

    kind: Kind
    examples: int
    ranges: RangeMode = RangeMode.OBSERVED
    first: bool = True

    def __str__(self) -> str:
        ranges = "" if self.ranges is RangeMode.OBSERVED else f", ranges {self.ranges.value}"
        return f"{self.kind.value} {self.examples}{ranges}{'' if self.first else ', not the first'}"


@dataclass(frozen=True, eq=False, repr=False)
class Program(Displayed):
    """Launches for one size of micro-batch, and the tensors through which the host feeds and reads them.

    - `prepare`: once a mini-batch: what derives from parameters.
    - `micro`: for each micro-batch: forward and backward pass.
    - `finish`: once a mini-batch: gradients completed and checked, weights updated.
    - `inputs`: the network's inputs, by name.
    - `outputs`: its outputs, by name; without the head that a loss computes itself.
    - `rematerialisation`: what became of its activations.
    - `measure`: as weights are loaded: extremes of kernels, which updates leave from then on.
    - `input_gradients`: gradients of the network's inputs by name, of a request that asks for them.
    """

    prepare: list[Launch]
    micro: list[Launch]
    finish: list[Launch]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    rematerialisation: Rematerialisation
    measure: list[Launch]
    input_gradients: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def y(self) -> Tensor:
        """The only output."""
        (tensor,) = self.outputs.values()
        return tensor

    @property
    def headline(self) -> str:
        return f"of {plural(len(self.launches), 'launch')}"

    @property
    def launches(self) -> list[Launch]:
        """The launches of a step whose mini-batch is a single micro-batch."""
        return self.prepare + self.micro + self.finish

    @property
    def all_launches(self) -> list[Launch]:
        return self.measure + self.launches

    @property
    def inverted(self) -> dict[Buffer, Buffer]:
        """Copies in the backward pass that were restored by inversion, by their originals in the forward pass."""
        return self.rematerialisation.inverted


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
    - `searched`: a budget made the planner search for it, which loads the solver (default False).
    """

    request: Request
    traits: Traits
    alignment: int
    storage: Storage
    programs: Mapping[ProgramKey, Program]
    offsets: Mapping[Buffer, int]
    arena_bytes: int
    paged_bytes: int
    searched: bool = False

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
    def process_bytes(self) -> int:
        """Predicted growth of the process with Model.fit, in bytes: see `process_memory`."""
        return self.process_memory().total

    def process_memory(self, copies: int = FIT_COPIES) -> ProcessMemory:
        """Predict by how much a process grows that has the driver open, to within 15 % on PoCL: at its peak, with
        kernels in the driver's cache, and without the user's data.

        On a GPU the device's memory is not the process's and is left out; what the driver itself takes there was not
        measured.

        Arguments:
        - `copies`: of all weights on the host at the peak (default 3, as in Model.fit; a Session alone has 2).
        """
        trains = self.request.optimizer is not None
        programs = [p for key, p in self.programs.items() if key.kind is Kind.TRAIN or not trains]
        pages = self.paged_bytes if self.offload and self.offload.folder is None else 0
        return predicted(
            device=0 if self.traits.gpu else self.peak_bytes,
            pages=pages,
            compiled=[launch for program in programs for launch in program.all_launches],
            launches=sum(len(program.all_launches) for program in self.programs.values()),
            weights=copies * 4 * self.request.network.count(),
            searched=self.searched,
        )

    @property
    def offload(self) -> Offload | None:
        """The strategy that says where pages are, if the plan has any."""
        return offload_of(self.request.strategies.values()) if self.paged_bytes else None

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
        return self.request.precision.mode(kind is Kind.TRAIN, known or self.request.known_ranges, step)

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
        launches, lives = program.micro, storage.lifetimes(program.micro, [y.buffer for y in program.outputs.values()])
        return [
            (launch.layer, sum(buffer.nbytes for buffer in storage.alive(lives, at)))
            for at, launch in enumerate(launches)
        ]

    def show(
        self, beside: Plan | None = None, names: tuple[str, str] = ("this plan", "the other"),
        predicted: Callable[[Launch], float] | None = None, measured: Mapping[Launch, float] | None = None,
        fusions: Sequence[Sequence[Fusion]] = (),
    ) -> PlanPage:  # fmt: skip
        """The plan as a page: layers, launches and the memory over a step, linked. A notebook shows it; its `save`
        writes one file for a browser.

        Arguments:
        - `beside`: another plan, to show the differences only (default none).
        - `names`: of this plan and the other.
        - `predicted`: seconds of a launch, such as `launch_times(device).seconds` (default: not shown).
        - `measured`: seconds by launch of this plan (default: not shown).
        - `fusions`: what they save in each plan, `[edgelearn.compile.fusions(plan)]` (default: not shown).
        """
        plans = [self] if beside is None else [self, beside]
        title = " beside ".join(dict.fromkeys(f"Plan of {plan.request.network.name}" for plan in plans))
        saved = [*fusions, (), ()]
        facts = (
            _facts(plan, name, saves, predicted, measured or {})
            for plan, name, saves in zip(plans, names, saved, strict=False)
        )
        return PlanPage(title, tuple(facts))

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
            "activation_memory": {name: str(strategy) for name, strategy in r.strategies.items()},
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
        beside = " besides the device's" if self.traits.gpu else ""
        lines.append(f"  {'process, predicted':<26}{self.process_bytes / MB:>10.2f} MB{beside}")
        if self.offload:
            lines.append(f"  {'offloaded':<26}{self.paged_bytes / MB:>10.2f} MB in {self.offload.place}")
        lines.append(f"  tuned for this kind of device: {self.tuned_count} of {len(self.decisions)} kernels' sizes")
        strategies = Counter(type(s).__name__.lower() for s in r.strategies.values() if not s.stores)
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


DEFINITIONS = {
    "stored": "written before the gradient of the loss and read after it; and the input, if the backward pass reads it",
    "paged": "offloaded between the passes, to the host's memory or a file",
    "peak": "largest sum of stored and workspace, as allocated: the arena of temporaries, and the input",
    "framework": "inputs of convolutions and BatchNorms, each tensor once: what a framework saves if activations work "
    "in place",
    "framework_not_in_place": "the same and inputs of activations: what PyTorch saves (2.13, ReLU6 in place or not)",
    "conv_inputs": "inputs of convolutions, each tensor once",
}


@dataclass(frozen=True)
class Accounting:
    """Bytes of a micro-batch's activations, by each of the DEFINITIONS. It prints as a table in MB.

    Arguments:
    - `stored`: held between the forward and the backward pass, from the plan's launches.
    - `paged`: held outside the device, as allocated.
    - `peak`: activations and workspace at their fullest moment, and the input, as allocated.
    - `framework`: inputs of convolutions and BatchNorms, each once: what a framework saves if activations work in
      place. It and the next two follow from the network's shapes, in float32 and without padding.
    - `framework_not_in_place`: the same and inputs of activations, as PyTorch saves them.
    - `conv_inputs`: inputs of convolutions, each once.
    """

    stored: int
    paged: int
    peak: int
    framework: int
    framework_not_in_place: int
    conv_inputs: int

    def __str__(self) -> str:
        """A table of MB, names and definitions."""
        lines = []
        for name in (each.name for each in fields(self)):
            start = f"{getattr(self, name) / MB:>9.2f} MB  {name:<22}  "
            lines += wrap(DEFINITIONS[name], WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
        return "\n".join(lines)


def account(plan: Plan) -> Accounting:
    """Count the activations of a training plan. Raises PlanError for other plans."""
    network, n = plan.request.network, plan.request.micro_batch
    if plan.request.optimizer is None:
        raise PlanError("Only a training plan stores activations: give the request an optimizer.")
    convolved, normalized, activated = (
        _inputs(network, *kinds) for kinds in ((Conv2D, DepthwiseConv2D), (BatchNormalization,), (Activation,))
    )
    return Accounting(
        stored=sum(buffer.nbytes for buffer in stored(plan.program(Kind.TRAIN))),
        paged=plan.paged_bytes,
        peak=plan.arena_bytes + plan.storage.input_bytes,
        framework=_nbytes(network, convolved | normalized, n),
        framework_not_in_place=_nbytes(network, convolved | normalized | activated, n),
        conv_inputs=_nbytes(network, convolved, n),
    )


def stored(program: Program) -> list[Buffer]:
    """Buffers that a training program holds between forward and backward pass, largest first."""
    launches, loss_at = program.micro, program.rematerialisation.loss_at
    held = [life.buffer for life in lifetimes(launches) if life.first < loss_at < life.last]
    read = {buffer for launch in launches[loss_at:] for buffer in launch.reads}
    held += [x.buffer for x in program.inputs.values() if x.buffer in read]
    return sorted(held, key=lambda buffer: -buffer.nbytes)


def _inputs(network: Network, *kinds: type) -> set[str]:
    return {node.inputs[0] for node in network.nodes.values() if isinstance(node.op, kinds)}


def _nbytes(network: Network, names: set[str], n: int) -> int:
    return 4 * n * sum(prod(network.shape_of(name)) for name in names)


STORED, WORKSPACE, GAPS = "stored", "workspace", "gaps"
ALL = "(all layers)"
BAR, SHORT_BAR = 26, 6  # characters of the longest bar, and of one with a number after it


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

    def table(self) -> Table:
        """A table of bytes by layer: persistent buffers, and temporaries at their peak."""
        rematerialisation = _program(self.plan).rematerialisation
        stored, restored = {STORED, *rematerialisation.held.values()}, set(rematerialisation.purposes.values())
        rows = []
        for layer, nbytes in self.by_layer().items():
            parameters, kept, copies, work = (
                sum(nbytes[purpose] for purpose in purposes)
                for purposes in ({Role.PARAMETER.value}, stored, restored, {WORKSPACE, GAPS})
            )
            others = nbytes.total() - parameters - kept - copies - work
            rows.append((layer, *(f"{n:,}" for n in (parameters, others, kept, copies, work))))
        return Table(("layer", "parameters", "others", STORED, "restored", WORKSPACE), rows, right=True)

    def timetable(self) -> str:
        """The timeline as text: peak MB of each layer in each pass."""
        most = max(moment.nbytes for moment in self.timeline)
        bar = SHORT_BAR if any(moment.paged for moment in self.timeline) else BAR
        return "\n".join(
            f"{'forward' if m.forward else 'backward':<9}{m.layer[:31]:<32}{m.nbytes / MB:>8.2f} MB  "
            f"{'█' * round(bar * m.nbytes / most)}" + (f"  offloaded {m.paged / MB:.2f} MB" if m.paged else "")
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
        lines = [f"{sum(n) / MB:>9.2f} MB  {purpose}: {plural(len(n), 'tensor')}" for purpose, n in purposes.items()]
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
        self.stored = set(stored(program)) if plan.request.optimizer else set()

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


def _facts(
    plan: Plan,
    name: str,
    fusions: Sequence[Fusion],
    predicted: Callable[[Launch], float] | None,
    measured: Mapping[Launch, float],
) -> PlanFacts:
    """Facts of a step of the plan for its page."""
    network, program = plan.request.network, _program(plan)
    index = {name: at for at, name in enumerate(network.nodes)}
    weights, state = Counter(), Counter()
    for share in _persistent(plan):
        (weights if share.purpose in (Role.PARAMETER.value, Role.CONSTANT.value) else state)[share.layer] += (
            share.nbytes
        )
    layers = [
        LayerFacts(
            node.name, str(node.op), block_of(node.name), tuple(index[x] for x in node.inputs if x in index),
            node.shape, weights[node.name], state[node.name],
        )
        for node in network.nodes.values()
    ]  # fmt: skip
    phases = [0] * len(program.prepare) + [1] * len(program.micro) + [3] * len(program.finish)
    start, backward_at = len(program.prepare), program.rematerialisation.backward_at
    if plan.request.optimizer:
        phases[start + backward_at : start + len(program.micro)] = [2] * (len(program.micro) - backward_at)
    launches = [
        LaunchFacts(
            launch.kernel, index.get(launch.layer, -1), phase, launch.flops, launch.nbytes,
            predicted and predicted(launch), measured.get(launch),
        )
        for launch, phase in zip(program.launches, phases, strict=True)
    ]  # fmt: skip
    purposes = _Purposes(plan, program)
    tensors = [
        TensorFacts(
            life.buffer.name.rpartition("/")[2], index.get(_layer(life.buffer), -1), purposes[life.buffer],
            life.buffer.nbytes, plan.offsets[life.buffer], start + life.first, start + life.last,
        )
        for life in lifetimes(program.micro, [y.buffer for y in program.outputs.values()])
    ]  # fmt: skip
    roles = {role.value: size for role, size in plan.bytes_by_role.items()}
    headline = (
        f"batch size {plan.request.batch_size} in micro-batches of {plan.request.micro_batch}, "
        f"{plan.peak_bytes / MB:.2f} MB of device memory in all"
    )
    return PlanFacts(name, headline, roles, plan.arena_bytes, layers, launches, tensors, fusions)
