"""Train in less memory: recompute, invert, offload or compress activations, within a budget.

`plan` explains the fastest plan of a network within a budget, `fit` says which combinations of precision, activation
memory, micro-batch and trained layers are within it, `compare` measures steps by many plans and by PyTorch,
`measure` measures the launches of this device for `plan`, `train` makes one training from scratch, and `check` compares
the published claim with plans, steps, times and finished trainings.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from edgelearn import atomic
from edgelearn.compile.plan import explain
from edgelearn.compile.search import COUNTS
from edgelearn.errors import PlanError
from edgelearn.experiments.memory import MemoryConfig
from edgelearn.experiments.memory_plans import ALLOWED
from edgelearn.extensions import import_instance
from edgelearn.lab.runs import RunStore, figures
from edgelearn.lab.runs.tables import render, table
from edgelearn.runtime import choose_device, launch_times

from . import parser as names
from .answer import Answer, print_table, width
from .parser import add_options, number, whole, written
from .training import add_runs, add_runs_folder, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="the fastest plan within a budget, explained")
    _add_network(plan)
    plan.add_argument("--budget", type=names.budget, metavar="SIZE", help="such as 8MB, or '8MB stored, 20MB peak'")
    plan.add_argument(
        "--count", choices=("device", "peak", "stored"), default="device",
        help="the kind of memory that SIZE limits if it names none: all device memory (default), activations at their "
        "peak, those stored between the passes",
    )  # fmt: skip
    plan.add_argument(
        "--allow", nargs="+", type=names.one_of(ALLOWED, "strategy"), default=[], metavar="STRATEGY",
        help=f"extra strategies for the planner, fewer bits, which is lossy, or memory outside the device: "
        f"{', '.join(ALLOWED)}, or MODULE:CLASS",
    )  # fmt: skip
    plan.add_argument("--pages", metavar="DIR", help="with --allow paged: to a file there, not to the host's memory")
    plan.add_argument("--batchnorm", choices=("moving", "batch"), default="batch")
    plan.add_argument("--layers", action="store_true", help="a row for each layer")
    plan.add_argument("--plot", type=written, metavar="PNG", help="draw the timeline there")
    plan.set_defaults(act=_plan)
    add_fit(commands.add_parser("fit", help="combinations of precision, memory, micro-batch and layers that fit"))
    compare = commands.add_parser("compare", help="memory and time of a step by many plans, in turn")
    _add_network(compare)
    compare.add_argument(
        "--plans",
        nargs="+",
        default=[],
        metavar="PLAN",
        help="some of them, as 'keep_all' '6 MB stored', or MODULE:NAME of a policy",
    )  # fmt: skip
    compare.add_argument("--rounds", type=whole(1), default=9)
    compare.add_argument("--chart", type=written, metavar="PNG", help="draw time over memory there")
    compare.set_defaults(act=_compare)
    measure = commands.add_parser("measure", help="times of launches on this device, stored for plans")
    _add_network(measure)
    measure.add_argument("--rounds", type=whole(1), default=20)
    measure.add_argument("--busy", action="store_true", help="store times although other programs use the cores")
    measure.set_defaults(act=_measure)
    one = commands.add_parser("train", help="one training from scratch")
    add_options(one, MemoryConfig)
    add_runs(one)
    one.set_defaults(act=_train)
    check = commands.add_parser("check", help="the claims on MobileNet V2: passed, failed or not measured")
    check.add_argument("--rounds", type=whole(1), default=9, help="of steps by all plans, for times")
    add_runs_folder(check)
    check.set_defaults(act=_check)
    for command in (plan, compare, measure, check):
        names.add_device(command)


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "network", nargs="?", type=names.network, default="mobilenet_v2", help=f"{names.NETWORK} (default: %(default)s)"
    )
    parser.add_argument("--alpha", type=number(0), default=1.0, help="width of a network of edgelearn.models")
    parser.add_argument("--batch-size", type=whole(1), default=1, help="examples of a step (default: %(default)s)")


def run(options: argparse.Namespace) -> Answer:
    return options.act(options)


def _plan(options: argparse.Namespace) -> Answer:
    from edgelearn.compile import Encoding, Offload
    from edgelearn.experiments.memory_plans import named_plan
    from edgelearn.interop import find_network

    device = choose_device(options.device).device
    if options.pages and "paged" not in options.allow:
        raise PlanError("--pages is for offloading, which isn't allowed: add --allow paged, or leave --pages out.")
    name = "keep_all" if options.budget is None else _counted(options.budget, options.count)
    allow = [
        Offload(options.pages) if name == "paged" else ALLOWED.get(name) or import_instance(name, Encoding)
        for name in options.allow
    ]
    network = find_network(options.network, options.alpha).network
    plan = named_plan(name, network, device, options.batch_size, options.batchnorm, allow, _log)
    times = launch_times(device, allow if plan.paged_bytes else ())
    explanation = explain(plan)
    print(explanation, "", sep="\n")
    if options.layers:
        print(explanation.table(), "", sep="\n")
    print(explanation.timetable(), "", sep="\n")
    print(
        f"Predicted: {times.step(plan) * 1e3:.1f} ms a step ({times.origin}; {times.known(plan):.0%} of its launches)"
    )
    if options.plot:
        from edgelearn.experiments.memory_plans import plot_timeline

        atomic.write_bytes(options.plot, figures.to_png(plot_timeline(plan, name)))
    accounted = explanation.accounting
    return Answer({
        "network": network.name, "device": device.id, "batch_size": plan.request.batch_size,
        "micro_batch": plan.request.micro_batch, "budget": name, "planned": plan.peak_bytes,
        "stored": accounted and accounted.stored, "peak": accounted and accounted.peak,
        "paged": accounted and accounted.paged, "predicted_seconds": times.step(plan),
        "measured_launches": times.known(plan), "shares": [asdict(share) for share in explanation.shares],
        "timeline": [asdict(moment) for moment in explanation.timeline],
    })  # fmt: skip


def _counted(budget: str, count: str) -> str:
    """The budget, with `count` for each part that doesn't name the kind of memory."""
    parts = [part.strip() for part in budget.split(",")]
    return ", ".join(part if part.lower().endswith(tuple(COUNTS)) else f"{part} {count}" for part in parts)


def _log(text: str) -> None:
    print(text, file=sys.stderr)


def _compare(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import memory_plans

    measured = memory_plans.compare(
        options.network, options.plans, options.batch_size, options.rounds, alpha=options.alpha,
        device=options.device or "", progress=_log,
    )  # fmt: skip
    print_table(memory_plans.HEADER, memory_plans.cells(measured), optional=("planned", "paged MB"))
    if options.chart:
        atomic.write_bytes(options.chart, figures.to_png(memory_plans.plot(measured)))
    return Answer({"command": options.command_line, "plans": memory_plans.records(measured)})


def _measure(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.memory_plans import plans_to_measure
    from edgelearn.interop import find_network
    from edgelearn.lab.profile import measure_launches
    from edgelearn.tuned import store

    device = choose_device(options.device).device
    network = find_network(options.network, options.alpha).network
    plans = plans_to_measure(network, device, options.batch_size)
    stored = measure_launches(list(plans.values()), device, options.rounds, options.busy)
    print(
        f"{len(stored.seconds)} launches of {device.id} measured, stored in {store.path_of_times(device)}; a step "
        f"takes {stored.between * 1e6:.1f} µs more for each, and {stored.fixed * 1e6:.0f} µs"
    )
    found = {"device": device.id, "launches": len(stored.seconds), "between": stored.between, "fixed": stored.fixed}
    return Answer(found | {"file": store.path_of_times(device)})


def _train(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.memory import MemoryExperiment

    return train(MemoryExperiment, options)


def _check(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments import claims as verdict
    from edgelearn.experiments import memory
    from edgelearn.models import mobilenet_v2

    device = choose_device(options.device).device
    verdicts = [
        *memory.check(device),
        *memory.check_times(mobilenet_v2(), device, options.rounds),
        memory.check_process(device),
        memory.check_trained(RunStore(options.runs)),
    ]
    print_table(verdict.HEADER, verdict.cells(verdicts))
    return Answer([asdict(each) for each in verdicts], verdict.status(verdicts))


def add_fit(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    from edgelearn.train.planning import PRECISIONS

    parser.add_argument("network", type=names.network, help=names.NETWORK)
    parser.add_argument(
        "--budget", type=names.budget, required=True, metavar="SIZE",
        help="such as '20 MB' of device memory, '20 MB peak' of activations and workspace, or '8 MB stored'",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=whole(1), default=32, help="examples of a step (default: %(default)s)")
    parser.add_argument("--alpha", type=number(0), default=1.0, help="width of a network of edgelearn.models")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="those to try")
    parser.add_argument(
        "--trained", nargs="+", metavar="LAYERS",
        help="layers to train: patterns such as 'dense', or 'from LAYER' (default: all, the upper half, the last)",
    )  # fmt: skip
    parser.add_argument("--batchnorm", choices=("auto", "moving", "batch"), default="auto")
    names.add_device(parser)
    parser.set_defaults(act=fit)


def fit(options: argparse.Namespace) -> Answer:
    """Plan, and print; the exit status is 1 if nothing fits."""
    from edgelearn.train.loading import as_network
    from edgelearn.train.planning import HEADER, plan_for

    trained = [()] + [(pattern,) for pattern in options.trained] if options.trained else None
    found = plan_for(
        as_network(options.network, options.alpha), options.budget, options.batch_size, precision=options.precision,
        trained=trained, batchnorm=options.batchnorm, device=options.device,
        progress=lambda text: print(text, file=sys.stderr),
    )  # fmt: skip
    shown = table(found.title, HEADER)
    for row in found.cells():
        shown.add_row(*row)
    for column in shown.columns[1:]:
        column.no_wrap = True
    print(render([shown] if found.combinations else [found.title], width()), end="")
    print(render(found.notes, width()), end="")
    return Answer(found.to_dict(), 0 if found.combinations else 1)
