"""Train with quantized weights, activations and gradients: the accuracy it costs, and the data movement it saves.

`train` makes one training of a task, `sweep` all that are compared and not finished yet, `report` shows their results,
`trace` the quantized tensors of a training. `time` measures steps in turn, `cost` and `check` hold the
published claims against formula, counters and trainings."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from edgelearn import atomic
from edgelearn.compile.precision import KINDS
from edgelearn.experiments.config import TrainingConfig
from edgelearn.experiments.precision import SEEDS, PrecisionConfig
from edgelearn.lab.runs import RunStore, figures

from . import parser as names
from .answer import Answer, print_table
from .parser import add_options, number, read_config, whole, written
from .training import add_runs, add_runs_folder, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("train", help="one training")
    add_options(one, PrecisionConfig)
    add_runs(one)
    one.set_defaults(act=_train)
    for name, act, text in (("sweep", _sweep, "all trainings of a task"), ("report", _report, "results of a sweep")):
        command = commands.add_parser(name, help=text)
        _add_comparison(command)
        add = command.add_argument
        add("--only", nargs="+", default=[], metavar="VARIANT", help='variants by pattern, as "fp32" "every*"')
        add("--markdown", action="store_true", help="the table in Markdown")
        add("--chart", type=written, metavar="PNG", help="draw the accuracies")
        command.set_defaults(act=act)
    trace = commands.add_parser("trace", help="the quantized tensors of a training with --trace")
    trace.add_argument("name", nargs="?", metavar="RUN", help="the run's id or the start of it (default: the newest)")
    trace.add_argument("--kind", choices=KINDS, default="gradients")
    trace.add_argument("--chart", type=written, metavar="PNG", help="draw layers by steps")
    trace.add_argument("--what", default="cosine", help="to draw: cosine, signal_to_noise, clipped or staleness")
    add_runs_folder(trace)
    trace.set_defaults(act=_trace)
    timed = commands.add_parser("time", help="steps in fp32, in hindsight and with current ranges, in turn")
    add = timed.add_argument
    add("networks", nargs="*", type=names.network, default=["mobilenet_v1"], metavar="NETWORK", help=names.NETWORK)
    add("--batch-size", type=whole(1), default=1)
    add("--alpha", type=number(0), default=1.0, help="width of networks of edgelearn.models")
    add("--batchnorm", choices=("moving", "batch"), default="moving")
    add("--variants", nargs="+", metavar="VARIANT", help='some of them, as "fp32" "integers, current"')
    add("--rounds", type=whole(1), default=15)
    add("--steps", type=whole(1), default=5, help="steps of each precision in a round")
    names.add_device(timed)
    add("--markdown", action="store_true", help="the table in Markdown")
    timed.set_defaults(act=_time)
    cost = commands.add_parser("cost", help="the published formula, layer by layer")
    cost.add_argument(
        "networks", nargs="*", type=_published_or_network, metavar="NETWORK",
        help=f"{names.NETWORK} (default: the published ones)",
    )  # fmt: skip
    cost.set_defaults(act=_cost)
    commands.add_parser("tasks", help="the tasks to train").set_defaults(act=_tasks)
    check = commands.add_parser("check", help="the claims: passed, failed or not measured")
    _add_comparison(check)
    check.set_defaults(act=_check)


def _published_or_network(text: str) -> str:
    from edgelearn.experiments import precision_claims

    return text if text in precision_claims.networks() else names.network(text)


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    add_options(parser, TrainingConfig, skip=("seed",))
    parser.add_argument("--seeds", nargs="+", type=whole(0), default=SEEDS)
    add_runs_folder(parser)


def run(options: argparse.Namespace) -> Answer:
    return options.act(options)


def _train(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.precision import PrecisionExperiment

    return train(PrecisionExperiment, options)


def _sweep(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.precision import select, sweep

    config = read_config(PrecisionConfig, options)
    if not sweep(config, select(options.only), options.seeds, RunStore(options.runs)):
        print(f"Stopped and saved. Continue with: {options.command_line}")
        return Answer({}, 130)
    return _report(options)


def _report(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import precision_claims
    from edgelearn.experiments.precision import select

    config = read_config(PrecisionConfig, options)
    comparison = precision_claims.Comparison.of(config, select(options.only), options.seeds, RunStore(options.runs))
    print(comparison.title)
    print_table(precision_claims.HEADER, comparison.cells(), options.markdown)
    if options.chart:
        precision_claims.plot(comparison.results, options.chart)
    return Answer(comparison.to_dict(options.command_line))


def _trace(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import precision

    run, trace = precision.of_run(RunStore(options.runs), options.name)
    print(f"{run.id}: {len(trace.steps)} steps traced")
    print_table(precision.HEADER, precision.cells(trace, options.kind))
    if first := trace.first_divergence():
        print("Step {}: {} is the first whose rounded values point elsewhere.".format(*first))
    if options.chart:
        atomic.write_bytes(options.chart, figures.to_png(precision.plot_ranges(trace, options.what, options.kind)))
    measures = {name: getattr(trace, name) for name in ("cosine", "signal_to_noise", "clipped", "staleness")}
    return Answer({"run": run.id, "steps": trace.steps, "tensors": trace.tensors, "divergence": first} | measures)


def _time(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import precision_claims
    from edgelearn.interop import find_network
    from edgelearn.runtime import choose_device
    from edgelearn.statistics import REMEDY

    device = choose_device(options.device).device
    sizes = options.batch_size, options.batchnorm, options.rounds, options.steps
    found = []
    for network in [find_network(name, options.alpha).network for name in options.networks]:
        times = precision_claims.time_precisions(network, device, *sizes, only=options.variants)
        print(precision_claims.time_title(times, options.batchnorm))
        print_table(precision_claims.TIME_HEADER, precision_claims.time_cells(times), options.markdown)
        if times.problem:
            print(f"Disturbed: {times.problem}. {REMEDY}")
        found.append(asdict(times))
    return Answer(found)


def _tasks(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.precision import TASKS

    print_table(("task", "epochs", "description"), [(n, str(k.epochs), k.title) for n, k in TASKS.items()])
    return Answer([{"task": name, "epochs": kind.epochs, "title": kind.title} for name, kind in TASKS.items()])


def _cost(options: argparse.Namespace) -> Answer:
    from edgelearn.compile.precision import convolutions, layer_traffic
    from edgelearn.experiments import precision_claims
    from edgelearn.interop import find_network

    published, found = precision_claims.networks(), []
    for name in options.networks or published:
        network = published.get(name) or find_network(name).network
        print(f"{name}: KiB that a forward pass of one example moves")
        print_table(precision_claims.COST_HEADER, precision_claims.cost_cells(network))
        layers = {layer: layer_traffic(network, layer) for layer in convolutions(network)}
        found.append(
            {"network": name, "layers": {n: asdict(t) | {"saved_share": t.saved_share} for n, t in layers.items()}}
        )
    return Answer(found)


def _check(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import claims, precision_claims
    from edgelearn.runtime import choose_device

    config = read_config(PrecisionConfig, options)
    device = choose_device(config.device).device
    checked = precision_claims.check(config, options.seeds, RunStore(options.runs), device)
    print_table(claims.HEADER, claims.cells(checked))
    return Answer([asdict(each) for each in checked], claims.status(checked))
