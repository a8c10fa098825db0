"""Train with quantized weights, activations and gradients: the accuracy it costs, and the data movement it saves.

`train` makes one training of a task, `sweep` all that are compared and not finished yet, `report` shows their results,
`trace` the quantized tensors of a training. `time` measures steps in turn, `cost` and `check` hold the
published claims against formula, counters and trainings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from edgelearn.compile.precision import KINDS, convolutions, layer_traffic
from edgelearn.display import plural
from edgelearn.experiments import precision, precision_claims
from edgelearn.experiments.config import DATA, TrainingConfig, setting
from edgelearn.experiments.exported_files import NETWORKS as EXPORTED
from edgelearn.experiments.precision import SEEDS, TASKS, PrecisionConfig, PrecisionExperiment, select
from edgelearn.interop import find_network
from edgelearn.lab.runs import RunStore, figures
from edgelearn.runtime import choose_device
from edgelearn.statistics import REMEDY
from edgelearn.tables import Table

from . import answer
from .answer import Answer, show
from .memory import CLAIMS
from .parser import DEVICE, MARKDOWN, NETWORK, RESUME, RUNS, argument, command, is_network, png
from .training import TRAINING, train

SEED = ("seed",)
COMPARED = setting(SEEDS, minimum=0)
ONLY = setting((), 'variants by pattern, as "fp32" "every*"', metavar="VARIANT")
CHART = png("draw the accuracies")
REPORT = {"tasks": "by name: device, date, command, variants"}


@command("precision train", "one training", one=TRAINING)
def train_one(config: PrecisionConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(PrecisionExperiment, config, runs, resume)


def _quantized(config: TrainingConfig) -> PrecisionConfig:
    return PrecisionConfig(**config.to_dict())


@command("precision sweep", "all trainings of a task", one=REPORT, skip=SEED)
def sweep(
    config: TrainingConfig, seeds: tuple[int, ...] = COMPARED, runs: RunStore = RUNS, only: tuple[str, ...] = ONLY,
    markdown: bool = MARKDOWN, chart: Path | None = CHART,
) -> Answer:  # fmt: skip
    if not precision.sweep(_quantized(config), select(only), seeds, runs):
        print(f"Stopped and saved. Continue with: {answer.command_line}")
        return Answer({}, 130)
    return Answer(report(config, seeds, runs, only, markdown, chart))


@command("precision report", "results of a sweep", one=REPORT, skip=SEED)
def report(
    config: TrainingConfig, seeds: tuple[int, ...] = COMPARED, runs: RunStore = RUNS, only: tuple[str, ...] = ONLY,
    markdown: bool = MARKDOWN, chart: Path | None = CHART,
) -> dict[str, Any]:  # fmt: skip
    comparison = precision_claims.PrecisionComparison.of(_quantized(config), select(only), seeds, runs)
    if markdown:
        print(comparison.title)
    show(comparison.table(), markdown)
    if chart:
        precision_claims.plot(comparison.results, chart)
    return comparison.to_dict(answer.command_line)


@command("precision trace", "the quantized tensors of a training with --trace", one={
    "run": "id", "steps": "numbers of the updates", "tensors": "names",
    "divergence": "step and tensor whose rounded values first point elsewhere, or null",
    "cosine, signal_to_noise, clipped, staleness": "a list a step, a number a tensor",
})  # fmt: skip
def trace(
    name: str | None = argument(None, "the run's id or the start of it (default: the newest)", metavar="RUN"),
    kind: str = setting("gradients", choices=KINDS),
    chart: Path | None = png("draw layers by steps"),
    what: str = setting("cosine", "to draw: cosine, signal_to_noise, clipped or staleness"),
    runs: RunStore = RUNS,
) -> dict[str, Any]:
    run, found = precision.of_run(runs, name)
    print(f"{run.id}: {plural(len(found.steps), 'step')} traced")
    show(precision.trace_table(found, kind))
    if first := found.first_divergence():
        print("Step {}: {} is the first whose rounded values point elsewhere.".format(*first))
    if chart:
        figures.saved(precision.plot_ranges(found, what, kind), chart)
    measures = {measure: getattr(found, measure) for measure in ("cosine", "signal_to_noise", "clipped", "staleness")}
    return {"run": run.id, "steps": found.steps, "tensors": found.tensors, "divergence": first} | measures


@command("precision time", "steps in fp32, in hindsight and with current ranges, in turn", many={
    "device, network": "names", "examples": "of a step", "seconds": "of a step, by variant, a number a round",
    "peaks": "planned bytes by variant", "traffic": "bytes moved by a step, by variant",
    "steps": "of each variant in a round",
    "noise": "share of the rounds during which other processes used the cores",
})  # fmt: skip
def time(
    networks: tuple[str, ...] = argument(("mobilenet_v1",), NETWORK, check=is_network, metavar="NETWORK"),
    batch_size: int = setting(1, minimum=1),
    alpha: float = setting(1.0, "width of networks of edgelearn.models", minimum=0),
    batchnorm: str = setting("moving", choices=("moving", "batch")),
    variants: tuple[str, ...] = setting((), 'some of them, as "fp32" "integers, current"', metavar="VARIANT"),
    rounds: int = setting(15, minimum=1),
    steps: int = setting(5, "steps of each precision in a round", minimum=1),
    device: str | None = DEVICE,
    markdown: bool = MARKDOWN,
) -> list[Any]:
    chosen, found = choose_device(device).device, []
    for network in [find_network(name, alpha).network for name in networks]:
        times = precision_claims.time_precisions(network, chosen, batch_size, batchnorm, rounds, steps, only=variants)
        print(precision_claims.time_title(times, batchnorm))
        show(precision_claims.time_table(times), markdown)
        if times.problem:
            print(f"Disturbed: {times.problem}. {REMEDY}")
        found.append(times)
    return found


def is_published_or_network(text: str) -> None:
    """Raises EdgelearnError for a name that is neither a network of the published tables nor one that is found."""
    if text not in precision_claims.networks():
        is_network(text)


@command("precision cost", "the published formula, layer by layer", many={
    "network": "name", "layers": "by name: weights, inputs, outputs, accumulators in bits, and saved_share",
})  # fmt: skip
def cost(
    networks: tuple[str, ...] = argument(
        (), f"{NETWORK} (default: the published ones)", check=is_published_or_network, metavar="NETWORK"
    ),
) -> list[Any]:
    published, found = precision_claims.networks(), []
    for name in networks or published:
        network = published.get(name) or find_network(name).network
        print(f"{name}: KiB that a forward pass of one example moves")
        show(precision_claims.cost_table(network))
        layers = {layer: layer_traffic(network, layer) for layer in convolutions(network)}
        sizes = {layer: {each.name: getattr(t, each.name) for each in fields(t)} for layer, t in layers.items()}
        found.append({"network": name, "layers": {
            layer: sizes[layer] | {"saved_share": traffic.saved_share} for layer, traffic in layers.items()
        }})  # fmt: skip
    return found


@command("precision exports", "accuracy and size of exported files on photographs, in the runtimes they are for", many={
    "network, file": "names", "bytes": "size of the file", "right, total": "test pictures",
})  # fmt: skip
def exports(
    networks: tuple[str, ...] = argument(tuple(EXPORTED), "networks", choices=tuple(EXPORTED), metavar="NETWORK"),
    examples: int = setting(100, "pictures that give the ranges of integers", minimum=1),
    data: str | None = setting(None, DATA, metavar="DIR"),
    markdown: bool = MARKDOWN,
) -> list[Any]:
    from edgelearn.experiments import exported_files

    found = exported_files.compare(networks, data, examples, answer.log)
    show(exported_files.table(found), markdown)
    return list(found)


@command("precision tasks", "the tasks to train", many={"task": "name", "epochs": "number", "title": "in words"})
def tasks() -> list[Any]:
    rows = [(name, kind.epochs, kind.title) for name, kind in TASKS.items()]
    show(Table(("task", "epochs", "description"), rows))
    return [dict(zip(("task", "epochs", "title"), row, strict=True)) for row in rows]


@command("precision check", "the claims: passed, failed or not measured", many=CLAIMS, skip=SEED)
def check(config: TrainingConfig, seeds: tuple[int, ...] = COMPARED, runs: RunStore = RUNS) -> Answer:
    device = choose_device(config.device).device
    found = precision_claims.check(_quantized(config), seeds, runs, device)
    show(found.table())
    return Answer(found.verdicts, found.status)
