"""Train with quantized weights, activations and gradients: what it costs in accuracy, and what it saves.

`train` makes one training of a task, `sweep` all that are compared (those that are finished are not made again),
`report` shows what there is, `trace` what became of each tensor of a training. `time` measures steps side by side,
`cost` and `check` hold the published claim against formula, counters and trainings."""

from __future__ import annotations

import argparse
import shutil
from datetime import date
from pathlib import Path

from edgelearn import atomic
from edgelearn.compile.precision.precision import KINDS
from edgelearn.errors import RunError
from edgelearn.experiments.precision.config import OBSERVERS, PrecisionConfig
from edgelearn.experiments.precision.sweep import SEEDS
from edgelearn.lab.runs import RunStore, figures
from edgelearn.runtime import choose_device

from .numbers import whole
from .training import add_runs, add_runs_folder, train

SETTINGS = tuple(PrecisionConfig.__dataclass_fields__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("train", help="one training")
    _add_task(one)
    add = one.add_argument
    for name in ("weights", "activations", "gradients"):
        add(f"--{name}", metavar="BITS", default="8", help="2 to 16 bits, fp16 or fp32")
    add("--per-channel", action="store_true", help="a range for each output channel of a kernel")
    add("--norm-inputs", metavar="BITS", default="fp32", help="of what BatchNorm normalizes by the batch's statistics")
    add("--observer", choices=OBSERVERS, default="in-hindsight", help="where ranges come from")
    add("--integers", action="store_true", help="store what is rounded, and compute with int8")
    add("--trace", type=int, default=0, metavar="STEPS", help="keep what became of every tensor, each so many steps")
    add("--seed", type=int, default=0)
    add_runs(one)
    one.set_defaults(act=_train)
    for name, act, words in (("sweep", _sweep, "all trainings of a task"), ("report", _report, "what a sweep came to")):
        command = commands.add_parser(name, help=words)
        _add_task(command)
        command.add_argument("--only", nargs="+", default=[], metavar="ROW", help='rows by pattern, as "fp32" "every*"')
        add_runs_folder(command)
        command.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
        command.add_argument("--markdown", action="store_true", help="the table in Markdown")
        command.add_argument("--chart", metavar="PNG", help="draw the accuracies")
        command.add_argument("--json", metavar="FILE", help="write the accuracies as expected.json has them")
        command.set_defaults(act=act)
    trace = commands.add_parser("trace", help="what became of each tensor of a training with --trace")
    trace.add_argument("name", nargs="?", metavar="RUN", help="its id or the start of it (default: the newest)")
    trace.add_argument("--kind", choices=KINDS, default="gradients")
    trace.add_argument("--chart", metavar="PNG", help="draw layers by steps")
    trace.add_argument("--what", default="cosine", help="to draw: cosine, signal_to_noise, clipped or staleness")
    add_runs_folder(trace)
    trace.set_defaults(act=_trace)
    timed = commands.add_parser("time", help="steps in fp32, in hindsight and with current ranges, side by side")
    timed.add_argument(
        "networks", nargs="*", default=["mobilenet_v1"], metavar="NETWORK", help="names in edgelearn.models"
    )
    timed.add_argument("--batch-size", type=whole(1), default=1)
    timed.add_argument("--alpha", type=float, default=1.0, help="the networks' width")
    timed.add_argument("--batchnorm", choices=("moving", "batch"), default="moving")
    timed.add_argument("--variants", nargs="+", metavar="VARIANT", help='some of them, as "fp32" "integers, current"')
    timed.add_argument("--rounds", type=whole(1), default=15)
    timed.add_argument("--steps", type=whole(1), default=5, help="of each variant in a round")
    timed.add_argument("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")
    timed.add_argument("--markdown", action="store_true", help="the table in Markdown")
    timed.set_defaults(act=_time)
    cost = commands.add_parser("cost", help="the published formula, layer by layer")
    cost.add_argument(
        "networks", nargs="*", metavar="NETWORK", help="names in edgelearn.models; the published ones by default"
    )
    cost.set_defaults(act=_cost)
    commands.add_parser("tasks", help="what can be trained").set_defaults(act=_tasks)
    check = commands.add_parser("check", help="the claim, point by point: pass or fail")
    _add_task(check)
    add_runs_folder(check)
    check.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    check.set_defaults(act=_check)


def _add_task(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "task",
        nargs="?",
        default="sample",
        help="what is trained: see `edgelearn precision tasks`",
    )
    add("--data", metavar="DIR", help="a folder with prepared data sets and weights (default: EDGELEARN_DATA)")
    add("--no-download", dest="download", action="store_false", help="never use the network")
    add("--epochs", type=int, help="the task's by default")
    add("--micro-batch", type=int, help="examples at a time on the device; the task's by default")
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")


def run(options: argparse.Namespace) -> int:
    return options.act(options) or 0


def _config(options: argparse.Namespace) -> PrecisionConfig:
    return PrecisionConfig(**{name: value for name, value in vars(options).items() if name in SETTINGS})


def _train(options: argparse.Namespace) -> int:
    from edgelearn.experiments.precision import PrecisionExperiment

    return train(PrecisionExperiment, _config(options), options)


def _sweep(options: argparse.Namespace) -> int:
    from edgelearn.experiments.precision.sweep import chosen, sweep

    if not sweep(_config(options), chosen(options.only), options.seeds, RunStore(options.runs)):
        print(f"Stopped and saved. Go on with: {options.command_line}")
        return 130
    _report(options)
    return 0


def _report(options: argparse.Namespace) -> None:
    from edgelearn.experiments.precision import TASKS, report
    from edgelearn.experiments.precision.sweep import chosen, collect, device_names, expected

    config = _config(options)
    rows = collect(config, chosen(options.only), options.seeds, RunStore(options.runs))
    if not rows:
        raise RunError(
            f"No training of '{options.task}' with these settings is finished in {RunStore(options.runs).root}. Make "
            f"them with 'edgelearn precision sweep' and the same options."
        )
    print(f"{config.task}, {device_names(rows)}")
    as_expected = config.epochs in (None, TASKS[config.task].epochs)
    _print(options, report.HEADER, report.cells(rows, expected(config.task) if as_expected else ()))
    if options.chart:
        report.plot(rows, options.chart)
    if options.json:
        found = {"device": device_names(rows), "date": f"{date.today()}", "command": options.command_line}
        found["arms"] = {row.arm: row.to_dict() for row in rows}
        atomic.write_json(Path(options.json), {"tasks": {options.task: found}})


def _trace(options: argparse.Namespace) -> None:
    from edgelearn.experiments.precision import report, traces

    run, trace = traces.of_run(RunStore(options.runs), options.name)
    print(f"{run.id}: {len(trace.steps)} steps traced")
    print(report.text(traces.HEADER, traces.cells(trace, options.kind)))
    if first := trace.first_divergence():
        print("Step {}: {} is the first that points elsewhere than its values.".format(*first))
    if options.chart:
        atomic.write_bytes(options.chart, figures.to_png(traces.plot_ranges(trace, options.what, options.kind)))


def _time(options: argparse.Namespace) -> None:
    from edgelearn.experiments.precision import report
    from edgelearn.experiments.precision.timing import VARIANTS, time_steps
    from edgelearn.models.named import named_network

    device = choose_device(options.device).device
    variants = options.variants or list(VARIANTS)
    if unknown := [name for name in variants if name not in VARIANTS]:
        raise RunError(f"'{unknown[0]}' is no variant: choose {'; '.join(VARIANTS)}.")
    sizes = options.batch_size, options.batchnorm, options.rounds, options.steps
    for network in [named_network(name, options.alpha) for name in options.networks]:
        times = time_steps(network, device, *sizes, variants)
        print(f"{network.name}, {options.batch_size} examples a step, {device.id}")
        _print(options, report.TIME_HEADER, report.time_cells(times))


def _tasks(options: argparse.Namespace) -> None:
    from edgelearn.experiments.precision import TASKS, report

    print(report.text(("task", "epochs", "what it is"), [(n, str(k.epochs), k.title) for n, k in TASKS.items()]))


def _cost(options: argparse.Namespace) -> None:
    from edgelearn.experiments.precision import claims, report
    from edgelearn.models.named import named_network

    built = claims.networks()
    chosen = {name: built.get(name) or named_network(name) for name in options.networks or built}
    for name, network in chosen.items():
        print(f"{name}: KiB that a forward pass of one example moves")
        print(report.text(report.COST_HEADER, report.cost_cells(network)))


def _check(options: argparse.Namespace) -> int:
    from edgelearn.experiments import claim as verdict
    from edgelearn.experiments.precision import claims, report

    device = choose_device(options.device).device
    verdicts = claims.check(_config(options), options.seeds, RunStore(options.runs), device)
    print(report.text(verdict.HEADER, verdict.cells(verdicts)))
    return int(any(v.holds is False for v in verdicts))


def _print(options: argparse.Namespace, header, rows) -> None:
    from edgelearn.experiments.precision import report

    width = shutil.get_terminal_size((110, 24)).columns
    print(report.markdown(header, rows) if options.markdown else report.text(header, rows, width))
