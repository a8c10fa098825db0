"""Training steps of one network by many plans: named plans, their measurement in turn, tables and figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.child import Worker, WorkerError
from edgelearn.compile import Compress, Offload, Plan, Request, account, make_plan
from edgelearn.compile.memory import Encoding
from edgelearn.compile.plan import DRIVER, SESSION_COPIES, explain
from edgelearn.compile.policies import POLICIES, cuts, find_policy
from edgelearn.compile.precision import named_precision
from edgelearn.compile.search import COUNTS, budgets
from edgelearn.device import Device
from edgelearn.display import MB, Displayed
from edgelearn.errors import PlanError, RunError, UsageError
from edgelearn.extensions import check_name, is_reference
from edgelearn.graph import Network, Node, reversible
from edgelearn.interop import find_network
from edgelearn.lab.measure import PeakMemory, RoundsConfig, Sample, measure_in_turn, sample, usable_cores
from edgelearn.lab.runs import figures
from edgelearn.launch import Role
from edgelearn.ops import SGD, Float16, pack
from edgelearn.runtime import Context, Session, choose_device, launch_times
from edgelearn.statistics import compare as compare_times
from edgelearn.statistics import quartiles
from edgelearn.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PRECISIONS = {f"{name} saved": named_precision(name) for name in ("fp16", "int8")}
ALLOWED = {"halves": Compress(Float16()), "compressed": Compress(), "paged": Offload()}  # within a budget
REVERSIBLE = "keep_all, reversible"  # the reference of "invertible": the same network
COUPLED = (REVERSIBLE, "invertible")  # plans of the network with its residual blocks as couplings
TORCH = ("torch", "torch, checkpointed")
BUDGETS = tuple(f"{size} MB stored" for size in (64, 48, 32, 24, 16, 8, 4))
MEASURED = ("keep_all", "checkpoints", "nested", *COUPLED)  # together they have all launches in float32
PLANS = (*POLICIES, REVERSIBLE, *PRECISIONS, *BUDGETS, *TORCH)


def named_plan(
    name: str,
    network: Network,
    device: Device,
    examples: int = 1,
    batchnorm: str = "batch",
    allow: Sequence[Encoding] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The plan of a training step.

    Arguments:
    - `name`: a policy, a precision, a budget such as "8 MB stored", or MODULE:NAME of a policy or an Encoding.
      "invertible" couples the network's residual
      blocks, and so does "keep_all, reversible", which stores everything.
    - `examples`: of a step.
    - `batchnorm`: "batch" or "moving".
    - `allow`: extra strategies that the planner may choose within a budget.
    - `progress`: called with a line for each plan that the planner tries.

    Raises UsageError for another name, PlanError where nothing fits, or nothing can be coupled.
    """
    settings: dict[str, Any] = {
        "batch_size": examples, "micro_batch": examples, "optimizer": SGD(0.01), "batchnorm": batchnorm
    }  # fmt: skip
    if name in COUPLED:
        network = reversible(network)
    if policy := POLICIES.get("keep_all" if name == REVERSIBLE else name):
        return make_plan(Request(network, **settings, activation_memory=policy(network)), device)
    if is_reference(name):
        return make_plan(Request(network, **settings, activation_memory=find_policy(name)(network)), device)
    if name in PRECISIONS:
        return make_plan(Request(network, **settings, precision=PRECISIONS[name]), device)
    if name.endswith(tuple(COUNTS)):
        times = launch_times(device, allow) if allow else None
        return make_plan(Request(network, **settings), device, name, launch_times=times, allow=allow, progress=progress)
    raise UsageError(f"There is no plan '{name}'. Choose {', '.join(PLANS)}; or a budget such as '6 MB stored'.")


def plans_to_measure(network: Network, device: Device, examples: int = 1) -> dict[str, Plan]:
    """Plans whose launches together are those of all plans in float32, by name: trainings, and a prediction; those of
    couplings where the network has blocks for them."""
    plans = {"prediction": make_plan(Request(network, examples, examples), device)}
    for name in MEASURED:
        with suppress(PlanError) if name in COUPLED else nullcontext():
            plans[name] = named_plan(name, network, device, examples)
    return plans


def prepare_engine(
    plan_name: str, network: Network, x: np.ndarray, labels: np.ndarray, device: str
) -> tuple[Callable[[], float], dict[str, Any]]:
    """(a training step, which returns its loss; the figures of its plan, see `Measured`).

    `device` is any part of a device's name, "" the best one. Raises as `named_plan`, and DeviceError.
    """
    context = Context(choose_device(device or None).device)
    plan = named_plan(plan_name, network, context.device, len(x))
    session = Session(plan, context)
    session.load(plan.request.network.initialize(0))
    packed, steps = pack(x, plan.storage.input.block), itertools.count(1)

    def step() -> float:
        return session.train([(packed, labels)], len(x), 0.0, next(steps))[0]

    step()
    accounted, times = account(plan), launch_times(context.device, [Offload()] if plan.paged_bytes else ())
    figures = {
        "stored": accounted.stored, "paged": accounted.paged, "peak": accounted.peak, "planned": plan.peak_bytes,
        "process_predicted": None if plan.traits.gpu else DRIVER + plan.process_memory(SESSION_COPIES).total,
        "allocated": context.ledger.peak, "predicted": times.step(plan), "measured_launches": times.known(plan),
        "network": plan.request.network.name, "device": context.device.id,
    }  # fmt: skip
    return step, figures


def prepare_torch(network: Network, x: np.ndarray, labels: np.ndarray, checkpointed: bool) -> Callable[[], float]:
    """A training step on images (n, height, width, channels) with BatchNorm's batch statistics, at learning rate 0; it
    returns the loss. Raises FormatError for a network that PyTorch's version can't compute."""
    import torch
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    from edgelearn.interop.to_torch import to_torch

    net = to_torch(network, batchnorm="batch", logits=True).train()
    optimizer = torch.optim.SGD([w for w in net.parameters() if w.requires_grad], lr=0.0)
    inputs, classes = net.encode(x).contiguous(), torch.from_numpy(labels).long()
    blocks = _checkpointed_blocks(network, net.nodes)

    def logits():
        if not checkpointed:
            return net(inputs)
        values = inputs
        for block in blocks:
            values = checkpoint(net.run, block, values, use_reentrant=False)
        return values

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(logits(), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _checkpointed_blocks(network: Network, nodes: list[Node]) -> list[list[Node]]:
    """The layers between tensors that everything after them passes through."""
    ends = {next(iter(cut)) for cut in cuts(network) if len(cut) == 1}
    blocks: list[list[Node]] = [[]]
    for node in nodes:
        blocks[-1].append(node)
        if node.name in ends:
            blocks.append([])
    return [block for block in blocks if block]


class PlanWorker:
    """A training step by one plan. Arguments as of `compare`; raises EdgelearnError where the plan can't be made."""

    def __init__(self, plan: str, network: str, alpha: float, examples: int, device: str) -> None:
        rng = np.random.default_rng(0)
        net = Network.from_json(network) if network.startswith("{") else find_network(network, alpha).network
        x = rng.uniform(-1, 1, (examples, *net.input_shape)).astype(np.float32)
        labels = rng.integers(0, net.output.shape[-1], examples).astype(np.int32)
        self.figures: dict[str, Any] = {}
        if plan in TORCH:
            import torch.utils.checkpoint  # noqa: F401  before memory is counted

            import edgelearn.interop.to_torch  # noqa: F401

            self.memory = PeakMemory()
            self.step = prepare_torch(net, x, labels, checkpointed=plan != TORCH[0])
        else:
            self.memory = PeakMemory()
            self.step, self.figures = prepare_engine(plan, net, x, labels, device)
        self.figures["loss"] = self.step()
        self.step()

    def facts(self) -> dict[str, Any]:
        """Figures of the plan, loss of the first step, and the process's peak memory so far minus that after the
        imports."""
        return self.figures | {"process": self.memory.over_imports}

    def measure(self, steps: int) -> dict[str, Any]:
        """A sample of steps, after an untimed one."""
        return asdict(sample(self.step, steps=steps))


WORKER = "edgelearn.experiments.memory_plans:PlanWorker"


@dataclass(frozen=True, repr=False)
class Measured(Displayed):
    """Measurements of one plan; bytes are None for PyTorch, which counts none of them.

    Arguments:
    - `plan`: its name, such as "keep_all".
    - `seconds`: of a step, an array of rounds.
    - `process`: peak memory of the process minus memory after the imports, bytes.
    - `loss`: of the first step.
    - `stored`, `paged`, `peak`: activations between the passes, those moved out of the device, and the peak, bytes.
    - `planned`, `allocated`: all device memory, bytes.
    - `predicted`: seconds of a step by launch times, of which the share `measured_launches` was measured.
    - `network`, `device`: names.
    - `process_predicted`: the same as predicted, the driver included; None on a GPU, where it was not measured.
    - `noisy`: rounds in which other processes disturbed every attempt (default 0).
    """

    plan: str
    seconds: np.ndarray
    process: int
    loss: float
    stored: int | None = None
    peak: int | None = None
    planned: int | None = None
    allocated: int | None = None
    predicted: float | None = None
    measured_launches: float | None = None
    network: str = ""
    device: str = ""
    paged: int | None = None
    noisy: int = 0
    process_predicted: int | None = None

    @property
    def headline(self) -> str:
        return f"'{self.plan}' of {self.network}: {self.median * 1e3:.1f} ms a step"

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def compare(
    network: str | Network = "mobilenet_v2", plans: Sequence[str] = (), examples: int = 1, rounds: int = 9,
    steps: int = 2, alpha: float = 1.0, device: str = "", attempts: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:  # fmt: skip
    """Train a network on random images with BatchNorm's batch statistics, by each plan in turn.

    Arguments:
    - `network`: a Network, or its name as of `find_network`; `alpha`: its width, if it is a name.
    - `plans`: names, see `named_plan` (default: all that can be made, PyTorch's where it is installed; `progress` is
      called with the reason for each that can't).
    - `examples`: of a step.
    - `rounds`, `steps`, `attempts`: blocks of each plan, steps of a block, and how often a noisy block is measured.
    - `device`: any part of an OpenCL device's name (default: the best one).

    Raises RunError where a plan in `plans` can't be made, or a process fails.
    """
    config = RoundsConfig(rounds, 0.0, steps, attempts)
    if rounds < 1:
        raise UsageError(f"Steps are measured in 1 or more rounds, not {rounds}.")
    _check(network, plans, examples, alpha)
    name = network.to_json() if isinstance(network, Network) else network
    cores = usable_cores()
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for plan in plans or [plan for plan in PLANS if plan not in TORCH or find_spec("torch")]:
            progress(f"preparing {plan}")
            try:
                workers[plan] = stack.enter_context(Worker(WORKER, (plan, name, alpha, examples, device)))
            except WorkerError as error:
                if plans or error.reason is None:
                    raise RunError(f"The plan '{plan}' can't be measured: {error.reason or error}") from None
                progress(f"left out: {plan}: {error.reason}")

        def stop(plan: str, error: WorkerError) -> None:
            raise RunError(f"The plan '{plan}' stopped: {error}") from None

        def block(worker: Worker) -> Sample:
            return Sample(**worker.call("measure", steps))

        samplers = {plan: partial(block, worker) for plan, worker in workers.items()}
        blocks = measure_in_turn(samplers, cores, config, lambda n: progress(f"round {n + 1} of {rounds}"), stop)
        return [
            Measured(
                plan, np.array([block.seconds for block in blocks[plan]]), **worker.call("facts"),
                noisy=sum(block.noisy for block in blocks[plan]),
            )
            for plan, worker in workers.items()
        ]  # fmt: skip


def _check(network: str | Network, plans: Sequence[str], examples: int, alpha: float) -> None:
    """Raise what would fail in the processes before any is started."""
    found = find_network(network, alpha).network
    if len(found.output.shape) != 1 or len(found.inputs) > 1:
        raise PlanError(
            f"Steps are timed on one input and class numbers, but '{found.name}' gives {found.output.shape}."
        )
    if examples < 1:
        raise UsageError(f"A step takes 1 or more examples, not {examples}.")
    for plan in plans:
        if is_reference(plan):
            find_policy(plan)
            continue
        if plan not in PLANS and not plan.endswith(tuple(COUNTS)):
            check_name(plan, PLANS, "plan", "a budget such as '6 MB stored'")
        if plan not in PLANS:
            budgets(plan)


def table(measured: Sequence[Measured]) -> Table:
    """A row for each plan. A time has its quartiles, and its ratio to the first plan's, round by round."""
    header = (
        "plan", "stored MB", "paged MB", "peak MB", "planned", "allocated", "process", "process, predicted",
        "ms a step", "of the first", "predicted ms",
    )  # fmt: skip
    return Table(header, [_row(one, measured[0]) for one in measured], optional=("planned", "paged MB", "allocated"))


def _row(one: Measured, first: Measured) -> tuple[str, ...]:
    sizes = (one.stored, one.paged, one.peak, one.planned, one.allocated, one.process, one.process_predicted)
    low, middle, high = (1e3 * seconds for seconds in quartiles(one.seconds))
    ratio = "1" if one is first else str(compare_times(one.seconds, first.seconds))
    predicted = "–" if one.predicted is None else f"{one.predicted * 1e3:,.1f}"
    if one.measured_launches is not None and one.measured_launches < 0.5:
        predicted += " (roofline)"
    times = f"{middle:,.1f} ({low:,.1f} – {high:,.1f})", ratio, predicted
    return one.plan, *("–" if size is None else f"{size / 1e6:,.2f}" for size in sizes), *times


def plot(measured: Sequence[Measured]) -> Figure:
    """Time of a step over the bytes stored, a point a plan."""
    figure = figures.canvas(figures.WIDTH, 4.5)
    axes = figure.add_subplot()
    points = [(one, one.stored / 1e6, one.median * 1e3) for one in measured if one.stored is not None]
    for one, *place in points:
        is_budget = one.plan.endswith(tuple(COUNTS))
        axes.plot(*place, "o", color=figures.BLUE if is_budget else figures.ORANGE)
        axes.annotate(one.plan, (place[0], place[1]), (5, 4), textcoords="offset points", fontsize=10)
    curve = sorted((size, 1e3 * (one.predicted or 0)) for one, size, _ in points if one.plan.endswith("stored"))
    sizes, times = [size for size, _ in curve], [time for _, time in curve]
    if len(curve) > 1:
        axes.plot(sizes, times, "--", color=figures.GRAY, label="budgets, as predicted")
        axes.legend(frameon=False, fontsize=10)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.15 * max((high for *_, high in points), default=1.0))
    figures.style(axes, "", "Stored between forward and backward pass (MB)", "A step (ms)", grid=False)
    return figure


_COLORS = {
    Role.PARAMETER: figures.BLUE,
    Role.CONSTANT: figures.PALETTE[5],
    Role.GRADIENT: figures.ORANGE,
    Role.OPTIMIZER: figures.PALETTE[4],
    Role.PREPARED: figures.PALETTE[3],
    Role.INPUT: "#999999",
    Role.CONTROL: figures.PALETTE[6],
    Role.TEMPORARY: figures.GREEN,
}

_PURPOSES = {
    "stored": figures.BLUE,
    "recomputed": figures.ORANGE,
    "inverted": figures.GREEN,
    "compressed": figures.PALETTE[5],
    "restored": figures.PALETTE[4],
    "workspace": "#BBBBBB",
}


def plot_roles(plans: Mapping[str, Plan]) -> Figure:
    """Draw the planned memory of each plan by role, one bar a plan. `plans`: by the names shown."""
    figure = figures.canvas(figures.WIDTH, 1.5 + 0.55 * len(plans))
    axes = figure.add_subplot()
    names = list(plans)
    left = [0.0] * len(names)
    for role, color in _COLORS.items():
        sizes = [plans[name].bytes_by_role.get(role, 0) / MB for name in names]
        if max(sizes) < 0.005 * max(plan.peak_bytes for plan in plans.values()) / MB:
            continue  # too small to see
        axes.barh(names, sizes, left=left, color=color, height=0.6, label=role.value)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    for index, name in enumerate(names):
        axes.text(left[index], index, f"  {plans[name].peak_bytes / MB:,.2f} MB", va="center", fontsize=10)
    axes.set_xlim(0, 1.18 * max(left))
    axes.invert_yaxis()
    figures.style(axes, "", "Planned device memory (MB)", grid=False, bars=True)
    figure.legend(loc="outside upper left", ncols=4, fontsize=10, frameon=False)
    return figure


def plot_timeline(plan: Plan, title: str = "") -> Figure:
    """Draw the peak memory of activations and workspace in each layer of a micro-batch, forward and backward, by
    purpose: stored, restored, workspace. Dashed: the arena that they share; dotted: what is offloaded by then. A plan
    with an optimizer shows a training step, another one a prediction."""
    moments = explain(plan).timeline
    figure = figures.canvas(figures.WIDTH, 3.8)
    axes = figure.add_subplot()
    bottom = [0.0] * len(moments)
    for purpose, color in _PURPOSES.items():
        sizes = [moment.purposes.get(purpose, 0) / 1e6 for moment in moments]
        if any(sizes):
            axes.bar(range(len(moments)), sizes, bottom=bottom, width=1.0, color=color, label=purpose)
        bottom = [a + b for a, b in zip(bottom, sizes, strict=True)]
    if any(moment.paged for moment in moments):
        paged = [moment.paged / 1e6 for moment in moments]
        axes.step(range(len(moments)), paged, ":", where="mid", color=figures.GRAY, label="offloaded")
    arena, dashed = plan.arena_bytes / 1e6, {"color": figures.GRAY, "linestyle": "--", "linewidth": 1.4}
    axes.axhline(arena, **dashed)
    text = f"the arena they share: {arena:,.2f} MB"
    axes.annotate(text, (0, arena), (0, 4), textcoords="offset points", va="bottom", fontsize=10)
    turn = sum(moment.forward for moment in moments) - 0.5
    if turn < len(moments) - 1:
        axes.axvline(turn, **dashed)
        axes.annotate(
            "backward pass →", (turn, 0.97), (5, 0), ("data", "axes fraction"), "offset points", va="top", fontsize=10
        )
    figures.style(axes, title, "", "Alive at most (MB)", grid=False)
    every = max(1, -(-len(moments) // 40))
    axes.set_xticks(
        range(0, len(moments), every), [m.layer for m in moments][::every], rotation=60, ha="right", fontsize=10
    )
    axes.set_xlim(-0.6, len(moments) - 0.4)
    axes.set_ylim(0, 1.25 * max(arena, *bottom))
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    return figure
