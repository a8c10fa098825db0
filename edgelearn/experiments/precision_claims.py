"""The published claims on quantized training, against formula, counters, timed steps and finished trainings."""

from __future__ import annotations

import itertools
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
from edgelearn.display import MB, Displayed
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

from .claims import Claim
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
HEADER = (
    "quantized", "test accuracy ± 95 %", "seeds", "below fp32", "expected", "planned", "allocated", "process",
    "moved/step",
)  # fmt: skip
TIME_HEADER = ("step", "ms", "middle half", "to current", "planned MB", "moved MB")
COST_HEADER = ("convolution", "weights", "input", "output", "static", "dynamic", "saved")


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The finished trainings of a task.

    Arguments:
    - `config`: the settings that they share.
    - `results`: one for each variant that was trained.
    """

    config: PrecisionConfig
    results: list[VariantResult]

    @property
    def headline(self) -> str:
        return f"of {len(self.results)} variants on '{self.config.task}'"

    @classmethod
    def of(
        cls, config: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore
    ) -> Comparison:
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

    def cells(self) -> list[tuple[str, ...]]:
        """Rows under HEADER, with the expected accuracies if the number of epochs is the task's."""
        usual = self.config.epochs in (None, TASKS[self.config.task].epochs)
        return result_cells(self.results, expected(self.config.task) if usual else ())

    def to_dict(self, command: str) -> dict:
        """The task's entry in expected.json. `command`: the command that makes it."""
        entry = {"device": device_names(self.results), "date": f"{date.today()}", "command": command}
        return {"tasks": {self.config.task: entry | {"variants": {r.variant: r.to_dict() for r in self.results}}}}


def result_cells(results: Sequence[VariantResult], expected: Sequence[VariantResult] = ()) -> list[tuple[str, ...]]:
    """Rows under HEADER: mean and 95 % interval over seeds in percent, memory in MB, MB that a step moves."""
    reference = next((result for result in results if result.variant == FLOAT), None)
    known = {result.variant: result for result in expected}
    return [_cells(result, reference, known.get(result.variant)) for result in results]


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


def time_cells(times: Times) -> list[tuple[str, ...]]:
    """Rows under TIME_HEADER: median and middle half over rounds, also of the ratio to the step with current ranges."""
    rows = []
    for name, seconds in times.seconds.items():
        reference = "integers, current" if name.startswith("integers") else "current"
        ratio = ""
        if name.endswith("in-hindsight") and reference in times.seconds:
            ratio = "{:.3f} ({:.3f} – {:.3f})".format(*times.ratio(name, reference))
        sizes = (f"{nbytes[name] / MB:,.1f}" for nbytes in (times.peaks, times.traffic))
        low, middle, high = (f"{1e3 * value:.2f}" for value in quartiles(seconds))
        rows.append((name, middle, f"{low} – {high}", ratio, *sizes))
    return rows


def time_title(times: Times, batchnorm: str) -> str:
    """Return two lines that say which network, batch and steps were measured."""
    examples, rounds, steps = (
        f"{count} {what}{'s' * (count > 1)}"
        for count, what in ((times.examples, "example"), (times.rounds, "round"), (times.steps, "step"))
    )
    return (
        f"{times.network}, training steps of {examples}, {batchnorm} BatchNorm statistics, on {times.device}\n"
        f"Median and middle half of {rounds}, in each of which every precision takes {steps} in turn"
    )


def cost_cells(network: Network) -> list[tuple[str, ...]]:
    """Rows under COST_HEADER: KiB of each convolution by the formula, and of all."""
    traffic = {name: layer_traffic(network, name) for name in convolutions(network)}
    return [_cost_cells(*item) for item in (*traffic.items(), ("all", network_traffic(network)))]


def _cost_cells(name: str, traffic: LayerTraffic) -> tuple[str, ...]:
    sizes = traffic.weights / 8, traffic.inputs / 8, traffic.outputs / 8, traffic.static_bytes, traffic.dynamic_bytes
    return name, *(f"{size / KIB:,.1f}" for size in sizes), f"{traffic.saved_share:.1%}"


# Ends of the names of tensors with at most one number per channel: the formula leaves them out.
VECTORS = ("range", "ranges", "found", "statistics", "scale", "shift", "bias")
# The paper's figures (table 6 and section 5.3): layer (None: all convolutions), KiB static, KiB dynamic, share saved.
PUBLISHED: tuple[tuple[str, str | None, float | None, float | None, float], ...] = (
    ("ResNet-18", "conv2_block1_1_conv", 428.0, 1996.0, 0.786),
    ("MobileNet V2", "block_1_expand", None, None, 0.873),
    ("ResNet-18", None, None, None, 0.557),
    ("VGG16", None, None, None, 0.744),
    ("MobileNet V2", None, None, None, 0.774),
)

SEEDS = 3  # with fewer, a claim about accuracy is not measured
# (variant, reference, allowed percentage points below it)
ACCURACY = (
    ("everything, in-hindsight", "everything, current", 0.5),
    ("everything, in-hindsight", FLOAT, 1.0),
    ("everything, per-channel weights, in-hindsight", "everything, per-channel weights, current", 0.5),
    ("everything, per-channel weights, in-hindsight", FLOAT, 1.0),
)


def networks() -> dict[str, Network]:
    """The networks of the paper's cost tables."""
    return {"ResNet-18": resnet18(), "VGG16": vgg16(), "MobileNet V2": mobilenet_v2()}


def costs() -> list[Claim]:
    """The cost formula against the published figures, rounded as these are."""
    claims, built = [], networks()
    for name, layer, static, dynamic, share in PUBLISHED:
        cost: LayerTraffic = layer_traffic(built[name], layer) if layer else network_traffic(built[name])
        fits = round(cost.saved_share, 3) == share
        if static is not None:
            fits = fits and round(cost.static_bytes / KIB, 1) == static
            fits = fits and round(cost.dynamic_bytes / KIB, 1) == dynamic
        figures = f"{cost.static_bytes / KIB:,.1f} KiB static, {cost.dynamic_bytes / KIB:,.1f} KiB dynamic"
        claim = f"{name}, {layer or 'all convolutions'}: {share:.1%} less data moved"
        claims.append(Claim(claim, f"{cost.saved_share:.1%}: {figures}", fits))
    return claims


def counted(network: Network, observer: str, device: Device) -> dict[str, tuple[int, float]]:
    """(counted bytes, formula's bytes) for each convolution in a forward pass of one example on integers. Counted are
    the bytes that the layer's launches read and write, without VECTORS and without what a convolution that computes the
    sum behind it adds: a launch reads the layer's input first."""
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


def counters(device: Device) -> list[Claim]:
    """The formula against the launches' declared traffic, layer by layer, for both kinds of ranges."""
    claims = []
    for name, network in networks().items():
        for observer, kind in (("in-hindsight", "static"), ("current", "dynamic")):
            pairs = counted(network, observer, device)
            padded = {layer for layer in pairs if _is_padded(network, layer)}
            same = sum(pairs[layer][0] == pairs[layer][1] for layer in pairs)
            measured = f"{same} of {len(pairs)} convolutions to the byte"
            if padded:
                more = sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()) - 1
                measured += f"; {len(padded)} have padded channels (to a multiple of 16): {more:.1%} more in all"
            claim = f"{name}, {kind}: counters agree with the formula"
            claims.append(Claim(claim, measured, same == len(pairs) - len(padded)))
    return claims


def _is_padded(network: Network, layer: str) -> bool:
    node = network.nodes[layer]
    ends = network.shape_of(node.inputs[0])[-1], node.shape[-1]
    return any(channels % 16 for channels in ends if channels > 3)


def steps(device: Device, batch: int = 4) -> list[Claim]:
    """Steps of a small network: traffic and memory are as predicted, int8 activations take a quarter of the bytes."""
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
    counted, expected = sum(traffic.values()), sum(predicted.values())
    return [
        Claim("Bytes that a step moves are as predicted", f"{counted:,} and {expected:,}", traffic == predicted),
        Claim("Memory is as planned", f"{allocated:,} and {plan.peak_bytes:,}", allocated == plan.peak_bytes),
        Claim(
            "Saved activations of an int8 plan are a quarter of fp32's",
            f"{saved['int8']:,} of {saved[FLOAT]:,} bytes: {saved['int8'] / saved[FLOAT]:.1%}",
            4 * saved["int8"] <= saved[FLOAT],
        ),
    ]


def faster(times: Times, name: str = "in-hindsight", reference: str = "current") -> Claim:
    """A step with ranges in hindsight takes less time than with current ranges. Not measured if 1 lies within the
    middle half of the ratios."""
    middle, low, high = times.ratio(name, reference)
    claim = f"{times.network}, {times.examples} a step: {name} is faster than {reference}"
    measured = f"{middle:.3f} of its time (middle half {low:.3f} to {high:.3f})"
    return Claim(claim, measured, None if low < 1 < high else high <= 1)


def check(config: PrecisionConfig, seeds: Sequence[int], store: RunStore, device: Device) -> list[Claim]:
    """All claims: formula, counters, steps on `device`, and the task's finished trainings in `store`."""
    results = collect(config, variants(), seeds, store)
    times = time_steps(mobilenet_v1((96, 96, 3), 0.25, 5), device, 1, variants=("in-hindsight", "current"))
    trained = [accuracy(results, *claim) for claim in ACCURACY]
    return [*costs(), *counters(device), *steps(device), faster(times), *trained]


def accuracy(results: Sequence[VariantResult], name: str, reference: str, points: float) -> Claim:
    """A variant's mean accuracy is at most `points` percentage points below that of `reference`. Counted are seeds of
    both; not measured with fewer than SEEDS of them."""
    claim = f"'{name}': at most {points:g} points below '{reference}'"
    by_name = {result.variant: result for result in results}
    if name not in by_name or reference not in by_name:
        return Claim(claim, "not trained yet", None)
    variant, other = by_name[name], by_name[reference]
    if variant.diverged:
        return Claim(claim, f"diverged with seeds {', '.join(map(str, variant.diverged))}", False)
    seeds = sorted(set(variant.accuracies) & set(other.accuracies))
    if not seeds:
        return Claim(claim, "no seed of both is trained yet", None)
    mean, other_mean = (sum(result.accuracies[s] for s in seeds) / len(seeds) for result in (variant, other))
    below = 100 * (other_mean - mean)
    text = f"{-below:+.2f} points, mean of {len(seeds)} seeds ({mean:.2%} and {other_mean:.2%})"
    return Claim(claim, text, below <= points if len(seeds) >= SEEDS else None)
