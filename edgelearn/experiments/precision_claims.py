"""The published claims on quantized training, against formula, counters, timed steps and finished trainings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.compile import Kind, Plan, Precision, Request, make_plan
from edgelearn.compile.plan import stored
from edgelearn.compile.precision import LayerTraffic, convolutions, layer_traffic, network_traffic
from edgelearn.device import Device, first_of
from edgelearn.display import MB, plural
from edgelearn.errors import RunError
from edgelearn.extensions import check_name
from edgelearn.graph import Network
from edgelearn.lab.measure import RoundsConfig, measure_in_turn, sample, usable_cores
from edgelearn.lab.runs import RunStore, figures, interval, mean_and_deviation
from edgelearn.launch import Traffic
from edgelearn.models import ds_cnn, mobilenet_v1, mobilenet_v2, resnet18, vgg16
from edgelearn.ops import SGD, Compute
from edgelearn.runtime import Context, Kernels, Session
from edgelearn.statistics import disturbance, quartiles
from edgelearn.tables import Table, Tabular

from .claims import Claim, NotMeasured, Verdicts, check_claims
from .precision import (
    FLOAT,
    TASKS,
    PrecisionConfig,
    Variant,
    VariantResult,
    collect,
    device_names,
    expected,
    variants,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


VARIANTS: Mapping[str, PrecisionConfig] = {
    FLOAT: PrecisionConfig(weights=FLOAT, activations=FLOAT, gradients=FLOAT),
    "in-hindsight": PrecisionConfig(),
    "current": PrecisionConfig(observer="current"),
    "integers, in-hindsight": PrecisionConfig(integers=True),
    "integers, current": PrecisionConfig(integers=True, observer="current"),
}
COMPUTE = {kind: Compute(kind) for kind in ("tf32", "bf16", "fp16")}
SETTLING = 3  # steps that compile kernels and let ranges settle


@dataclass(frozen=True)
class Times:
    """Seconds of a step by variant, an array of rounds each; `peaks` are planned bytes, `traffic` bytes that a step
    moves; `steps` are those of a round, and `noise` is the share of rounds during which other processes used the
    cores."""

    device: str
    network: str
    examples: int
    seconds: Mapping[str, np.ndarray]
    peaks: Mapping[str, int]
    traffic: Mapping[str, int]
    steps: int = 1
    noise: float = 0.0

    @property
    def rounds(self) -> int:
        return len(next(iter(self.seconds.values())))

    @property
    def problem(self) -> str:
        """Why nothing may be concluded from these times; empty if nothing is wrong with them."""
        parts = [quartiles(seconds) for seconds in self.seconds.values()]
        return disturbance(self.noise, max((high - low) / middle for low, middle, high in parts))

    def ratio(self, variant: str, reference: str) -> tuple[float, float, float]:
        """(median, lower and upper quartile) of the variant's times over the reference's, round by round."""
        low, middle, high = quartiles(self.seconds[variant] / self.seconds[reference])
        return middle, low, high


def time_steps(
    network: Network, device: Device, examples: int, batchnorm: str = "moving", rounds: int = 15, steps: int = 5,
    variants: Sequence[str] = tuple(VARIANTS), progress: Callable[[int, int], None] = lambda done, total: None,
) -> Times:  # fmt: skip
    """Time training steps of a network by precision.

    Arguments:
    - `examples`: of a step; the input is on the device already.
    - `batchnorm`: "moving" or "batch".
    - `rounds`, `steps`: in each round every variant takes a block of `steps` steps, in an order that rotates.
    - `variants`: names in VARIANTS or COMPUTE.
    - `progress`: called with (rounds done, all rounds) after each.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, network.output.shape[-1], examples).astype(np.int32)
    plans = {name: _plan(network, device, examples, batchnorm, name) for name in variants}
    with ExitStack() as stack:
        context = Context(device)
        kernels, weights, samplers = Kernels(context), network.initialize(0), {}
        for name, plan in plans.items():
            session = Session(plan, context, kernels)
            stack.callback(session.close)
            session.load(weights)
            x = rng.standard_normal(plan.storage.input.buffer.nbytes // 4, np.float32)
            for number in range(1, SETTLING + 1):
                session.train([(x, labels)], examples, 0.0, number)
            numbers = itertools.count(SETTLING + 1)
            samplers[name] = partial(sample, partial(_step, session, labels, numbers), steps=steps)
        config = RoundsConfig(rounds, 0.0, steps)
        blocks = measure_in_turn(samplers, usable_cores(), config, lambda number: progress(number + 1, rounds))
    return Times(
        device.id, network.name, examples,
        {name: np.array([block.seconds for block in blocks[name]]) for name in variants},
        {name: plan.peak_bytes for name, plan in plans.items()},
        {name: sum(plan.traffic().values()) for name, plan in plans.items()},
        steps, float(np.mean([block.noisy for found in blocks.values() for block in found])),
    )  # fmt: skip


def _step(session: Session, labels: np.ndarray, numbers: itertools.count) -> None:
    session.train([(None, labels)], len(labels), 0.0, next(numbers))


def _plan(network: Network, device: Device, examples: int, batchnorm: str, variant: str) -> Plan:
    precision = VARIANTS[variant].precision if variant in VARIANTS else Precision()
    request = Request(
        network, examples, examples, SGD(0.01, momentum=0.9), batchnorm, precision=precision,
        compute=COMPUTE.get(variant, Compute()),
    )  # fmt: skip
    return make_plan(request, device)


KIB = 1 << 10  # as in the paper's tables


@dataclass(frozen=True, repr=False)
class PrecisionComparison(Tabular):
    """The finished trainings of a task.

    Arguments:
    - `config`: the settings that they share.
    - `results`: one for each variant that was trained.
    """

    config: PrecisionConfig
    results: list[VariantResult]

    @property
    def headline(self) -> str:
        return f"of {plural(len(self.results), 'variant')} on '{self.config.task}'"

    @classmethod
    def of(
        cls, config: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore
    ) -> PrecisionComparison:
        """Collect the trainings in `store`. Raises RunError if there is none."""
        results = collect(config, variants, seeds, store)
        if not results:
            raise RunError(
                f"No training of '{config.task}' with these settings is finished in {store.root}. Train with "
                f"'edgelearn precision sweep' and the same options."
            )
        return cls(config, results)

    @property
    def title(self) -> str:
        return f"{self.config.task}, {device_names(self.results)}"

    def table(self) -> Table:
        """The results, with the expected accuracies if the number of epochs is the task's."""
        usual = self.config.epochs in (None, TASKS[self.config.task].epochs)
        return results_table(self.results, expected(self.config.task) if usual else (), self.title)

    def to_dict(self, command: str) -> dict:
        """The task's entry in expected.json. `command`: the command that makes it."""
        entry = {"device": device_names(self.results), "date": f"{date.today()}", "command": command}
        return {"tasks": {self.config.task: entry | {"variants": {r.variant: r.to_dict() for r in self.results}}}}


def results_table(results: Sequence[VariantResult], expected: Sequence[VariantResult] = (), title: str = "") -> Table:
    """A row for each variant: mean and 95 % interval over seeds in percent, memory in MB, MB that a step moves."""
    header = (
        "quantized", "test accuracy ± 95 %", "seeds", "below fp32", "expected", "planned", "allocated", "process",
        "moved/step",
    )  # fmt: skip
    reference = next((result for result in results if result.variant == FLOAT), None)
    known = {result.variant: result for result in expected}
    return Table(header, [_cells(result, reference, known.get(result.variant)) for result in results], title)


def _cells(result: VariantResult, reference: VariantResult | None, expected: VariantResult | None) -> tuple[str, ...]:
    below = []
    if reference is not None and reference is not result:
        seeds = set(result.accuracies) & set(reference.accuracies)
        below = [100 * (reference.accuracies[seed] - result.accuracies[seed]) for seed in seeds]
    memory, traffic = result.results.get("memory", {}), result.results.get("traffic")
    return (
        result.variant,
        spread(list(result.accuracies.values())) if result.accuracies else "",
        str(len(result.accuracies)) + (f", {len(result.diverged)} diverged" if result.diverged else ""),
        f"{mean_and_deviation(below)[0]:+.2f}" if below else "",
        spread(list(expected.accuracies.values())) if expected else "",
        *(f"{memory[name] / MB:,.1f}" if memory else "" for name in ("planned", "allocated", "process")),
        f"{traffic / MB:,.0f}" if traffic else "",
    )


def spread(accuracies: Sequence[float]) -> str:
    """ "81.23 ± 0.45" percent: mean and Student's 95 % interval over the seeds; of one seed its value."""
    if len(accuracies) == 1:
        return f"{100 * accuracies[0]:.2f}"
    found = interval(accuracies)
    return f"{100 * found.mean:.2f} ± {100 * found.margin:.2f}"


def plot(results: Sequence[VariantResult], path: str | Path | None = None) -> Figure:
    """Draw test accuracies: a line for each variant, a dot for each seed, a bar for the mean."""
    accuracies = {result.variant: list(result.accuracies.values()) for result in results if result.accuracies}
    return figures.plot_spread(accuracies, "Test accuracy (%)", path)


def time_precisions(
    network: Network, device: Device, examples: int, batchnorm: str, rounds: int, steps: int,
    only: Sequence[str] | None = None,
) -> Times:  # fmt: skip
    """Time training steps in each of timing.VARIANTS and the compute types that the device has units for, or those that
    `only` names. Raises UsageError for another name."""
    known = [*VARIANTS, *COMPUTE]
    for name in only or ():
        check_name(name, known, "variant")
    possible = [name for name in known if name in VARIANTS or first_of(device.units, name)]
    return time_steps(network, device, examples, batchnorm, rounds, steps, variants=only or possible)


def time_table(times: Times) -> Table:
    """A row for each variant: median and middle half over rounds, also of the ratio to the step with current ranges."""
    rows = []
    for name, seconds in times.seconds.items():
        reference = "integers, current" if name.startswith("integers") else "current"
        ratio = ""
        if name.endswith("in-hindsight") and reference in times.seconds:
            ratio = "{:.3f} ({:.3f} – {:.3f})".format(*times.ratio(name, reference))
        sizes = (f"{nbytes[name] / MB:,.1f}" for nbytes in (times.peaks, times.traffic))
        low, middle, high = (f"{1e3 * value:.2f}" for value in quartiles(seconds))
        rows.append((name, middle, f"{low} – {high}", ratio, *sizes))
    return Table(("step", "ms", "middle half", "to current", "planned MB", "moved MB"), rows)


def time_title(times: Times, batchnorm: str) -> str:
    """Return two lines that say which network, batch and steps were measured."""
    examples, rounds, steps = (
        plural(count, what)
        for count, what in ((times.examples, "example"), (times.rounds, "round"), (times.steps, "step"))
    )
    return (
        f"{times.network}, training steps of {examples}, {batchnorm} BatchNorm statistics, on {times.device}\n"
        f"Median and middle half of {rounds}, in each of which every precision takes {steps} in turn"
    )


def cost_table(network: Network) -> Table:
    """KiB of each convolution by the formula, and of all."""
    traffic = {name: layer_traffic(network, name) for name in convolutions(network)}
    rows = [_cost_cells(*item) for item in (*traffic.items(), ("all", network_traffic(network)))]
    return Table(("convolution", "weights", "input", "output", "static", "dynamic", "saved"), rows)


def _cost_cells(name: str, traffic: LayerTraffic) -> tuple[str, ...]:
    sizes = traffic.weights / 8, traffic.inputs / 8, traffic.outputs / 8, traffic.static_bytes, traffic.dynamic_bytes
    return name, *(f"{size / KIB:,.1f}" for size in sizes), f"{traffic.saved_share:.1%}"


# -- claims ----------------------------------------------------------------------------------------------------------

# Ends of the names of tensors with at most one number per channel: the formula leaves them out.
VECTORS = ("range", "ranges", "found", "statistics", "scale", "shift", "bias")
SEEDS = 3  # with fewer, a claim about accuracy is not measured
NETWORKS: dict[str, Callable[[], Network]] = {"ResNet-18": resnet18, "VGG16": vgg16, "MobileNet V2": mobilenet_v2}


def networks() -> dict[str, Network]:
    """The networks of the paper's cost tables."""
    return {name: make() for name, make in NETWORKS.items()}


def _cost(name: str, layer: str | None, figures: int, built: Mapping[str, Network]) -> tuple[tuple[float, ...], str]:
    cost: LayerTraffic = layer_traffic(built[name], layer) if layer else network_traffic(built[name])
    static, dynamic = cost.static_bytes / KIB, cost.dynamic_bytes / KIB
    found = (round(cost.saved_share, 3), round(static, 1), round(dynamic, 1))[:figures]
    return found, f"{cost.saved_share:.1%}: {static:,.1f} KiB static, {dynamic:,.1f} KiB dynamic"


def _cost_claim(name: str, layer: str | None, *figures: float) -> Claim[Mapping[str, Network]]:
    sentence = f"{name}, {layer or 'all convolutions'}: {{target[0]:.1%}} less data moved"
    return Claim(sentence, partial(_cost, name, layer, len(figures)), "=", figures)


# The paper's figures (table 6 and section 5.3): share saved, KiB static, KiB dynamic, rounded as there.
COSTS = (
    _cost_claim("ResNet-18", "conv2_block1_1_conv", 0.786, 428.0, 1996.0),
    _cost_claim("MobileNet V2", "block_1_expand", 0.873),
    _cost_claim("ResNet-18", None, 0.557),
    _cost_claim("VGG16", None, 0.744),
    _cost_claim("MobileNet V2", None, 0.774),
)


def counted(network: Network, observer: str, device: Device) -> dict[str, tuple[int, float]]:
    """(counted bytes, formula's bytes) for each convolution in a forward pass of one example on integers. Counted are
    the bytes that the layer's launches read and write, without VECTORS and without what a convolution that computes the
    sum after it adds: a launch reads the layer's input first."""
    precision = PrecisionConfig(integers=True, observer=observer).precision
    plan = make_plan(Request(network, precision=precision, loss=None), device)
    moved: dict[str, int] = {}
    inputs: dict[tuple[str, str], str] = {}
    for (layer, kernel, tensor, direction), nbytes in Traffic.of(plan.program(Kind.PREDICT).micro).items():
        is_value = direction == "read" and tensor.endswith("activations")
        is_added = is_value and inputs.setdefault((layer, kernel), tensor) != tensor
        if not is_added and not tensor.endswith(VECTORS):
            moved[layer] = moved.get(layer, 0) + nbytes
    static = precision.observer.static
    costs = {layer: layer_traffic(network, layer) for layer in convolutions(network)}
    return {k: (moved[k], cost.static_bytes if static else cost.dynamic_bytes) for k, cost in costs.items()}


def _counters(name: str, observer: str, device: Device) -> tuple[int, str]:
    network = NETWORKS[name]()
    pairs = counted(network, observer, device)
    padded = {layer for layer in pairs if _is_padded(network, layer)}
    same = sum(a == b for a, b in pairs.values())
    measured = f"{same} of {plural(len(pairs), 'convolution')} to the byte"
    if padded:
        more = sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()) - 1
        measured += f"; {len(padded)} have padded channels (to a multiple of 16): {more:.1%} more in all"
    return len(pairs) - len(padded) - same, measured


def _is_padded(network: Network, layer: str) -> bool:
    node = network.nodes[layer]
    ends = network.shape_of(node.inputs[0])[-1], node.shape[-1]
    return any(channels % 16 for channels in ends if channels > 3)


# The formula against the launches' declared traffic: convolutions that differ without padded channels.
COUNTERS: tuple[Claim[Device], ...] = tuple(
    Claim(f"{name}, {kind}: counters agree with the formula", partial(_counters, name, observer), "=", 0)
    for name in NETWORKS for observer, kind in (("in-hindsight", "static"), ("current", "dynamic"))
)  # fmt: skip


@dataclass(frozen=True)
class CountedSteps:
    """Two steps of a small network on integers: bytes that they moved and were to move, allocated and planned memory;
    and the activations that a step saves, in bytes, by precision."""

    moved: Traffic
    predicted: Traffic
    allocated: int
    planned: int
    saved: Mapping[str, int]


def count_steps(device: Device, batch: int = 4) -> CountedSteps:
    """Train a small network for two steps, and count."""
    network = ds_cnn()
    plans = {}
    for name, config in (("int8", PrecisionConfig(integers=True)), (FLOAT, VARIANTS[FLOAT])):
        request = Request(network, batch, batch, SGD(0.01), precision=config.precision)
        plans[name] = make_plan(request, device)
    plan, context = plans["int8"], Context(device)
    session = Session(plan, context, Kernels(context))
    try:
        session.load(network.initialize(0))
        x = np.zeros(plan.storage.input.buffer.nbytes // 4, np.float32)
        predicted = Traffic()
        for step in (1, 2):
            predicted += plan.traffic(ranges=plan.ranges(Kind.TRAIN, session.ranges_known, step))
            session.train([(x, np.zeros(batch, np.int32))], batch, 0.01, step)
        traffic, allocated = session.traffic, session.allocated_bytes
    finally:
        session.close()
    saved = {name: sum(buffer.nbytes for buffer in stored(p.program(Kind.TRAIN))) for name, p in plans.items()}
    return CountedSteps(traffic, predicted, allocated, plan.peak_bytes, saved)


def _moved(s: CountedSteps) -> tuple[bool, str]:
    return s.moved == s.predicted, f"{sum(s.moved.values()):,} and {sum(s.predicted.values()):,}"


def _saved(s: CountedSteps) -> tuple[float, str]:
    share = s.saved["int8"] / s.saved[FLOAT]
    return share, f"{s.saved['int8']:,} of {s.saved[FLOAT]:,} bytes: {share:.1%}"


STEPS: tuple[Claim[CountedSteps], ...] = (
    Claim("Bytes that a step moves are as predicted", _moved),
    Claim("Memory is as planned", lambda s: (s.allocated == s.planned, f"{s.allocated:,} and {s.planned:,}")),
    Claim("Saved activations of an int8 plan are a quarter of fp32's", _saved, "≤", 0.25),
)


def _faster(times: Times) -> tuple[float, str]:
    """Decides nothing if 1 lies within the middle half of the ratios."""
    middle, low, high = times.ratio("in-hindsight", "current")
    measured = f"{middle:.3f} of its time (middle half {low:.3f} to {high:.3f})"
    if low < 1 < high:
        raise NotMeasured(measured)
    return high, measured


def faster_claim(network: str, examples: int) -> Claim[Times]:
    """The claim on the time of a step of so many examples of a network."""
    return Claim(f"{network}, {examples} a step: in-hindsight is faster than current", _faster, "≤", 1)


def _below(name: str, reference: str, results: Sequence[VariantResult]) -> tuple[float, str]:
    """Percentage points that a variant is below `reference`, mean over the seeds of both."""
    by_name = {result.variant: result for result in results}
    if name not in by_name or reference not in by_name:
        raise NotMeasured("not trained yet")
    variant, other = by_name[name], by_name[reference]
    if variant.diverged:
        return math.inf, f"diverged with seeds {', '.join(map(str, variant.diverged))}"
    seeds = sorted(set(variant.accuracies) & set(other.accuracies))
    if not seeds:
        raise NotMeasured("no seed of both is trained yet")
    mean, other_mean = (sum(result.accuracies[s] for s in seeds) / len(seeds) for result in (variant, other))
    below = 100 * (other_mean - mean)
    measured = f"{-below:+.2f} points, mean of {plural(len(seeds), 'seed')} ({mean:.2%} and {other_mean:.2%})"
    if len(seeds) < SEEDS:
        raise NotMeasured(measured)
    return below, measured


def accuracy_claim(name: str, reference: str, points: float) -> Claim[Sequence[VariantResult]]:
    """A variant's mean accuracy is at most `points` percentage points below that of `reference`. Counted are seeds of
    both; not measured with fewer than SEEDS of them."""
    return Claim(
        f"'{name}': at most {{target:g}} points below '{reference}'", partial(_below, name, reference), "≤", points
    )


ACCURACY = (
    accuracy_claim("everything, in-hindsight", "everything, current", 0.5),
    accuracy_claim("everything, in-hindsight", FLOAT, 1.0),
    accuracy_claim(
        "everything, per-channel weights, in-hindsight", "everything, per-channel weights, current", 0.5
    ),
    accuracy_claim("everything, per-channel weights, in-hindsight", FLOAT, 1.0),
)  # fmt: skip


def check(config: PrecisionConfig, seeds: Sequence[int], store: RunStore, device: Device) -> Verdicts:
    """Check all claims: formula, counters, steps on `device`, and the task's finished trainings in `store`."""
    timed = mobilenet_v1((96, 96, 3), 0.25, 5)
    return (
        check_claims(COSTS, networks)
        + check_claims(COUNTERS, lambda: device)
        + check_claims(STEPS, partial(count_steps, device))
        + check_claims(
            [faster_claim(timed.name, 1)],
            partial(time_steps, timed, device, 1, variants=("in-hindsight", "current")),
        )
        + check_claims(ACCURACY, partial(collect, config, variants(), seeds, store))
    )
