"""Train in less memory: recompute, invert, offload or compress activations, within a budget.

`plan` explains the fastest plan of a network within a budget, `fit` says which combinations of precision, activation
memory, micro-batch and trained layers are within it, `compare` measures steps by many plans and by PyTorch,
`measure` measures the launches of this device for `plan`, `train` makes one training from scratch, and `check` compares
the published claim with plans, steps, times and finished trainings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgelearn.compile import Encoding, Offload, fusions
from edgelearn.compile.plan import explain
from edgelearn.compile.search import COUNTS, budgets
from edgelearn.display import MB, plural
from edgelearn.errors import PlanError
from edgelearn.experiments import memory_plans
from edgelearn.experiments.config import setting
from edgelearn.experiments.memory import MemoryConfig, MemoryExperiment
from edgelearn.experiments.memory_plans import ALLOWED, named_plan
from edgelearn.extensions import import_instance
from edgelearn.interop import find_network
from edgelearn.lab.runs import RunStore, figures
from edgelearn.launch import Launch
from edgelearn.runtime import choose_device, launch_times
from edgelearn.tables import Table
from edgelearn.train.planning import PRECISIONS, plan_for

from . import answer
from .answer import Answer, log, show, shown
from .parser import ALPHA, DEVICE, MARKDOWN, NETWORK, RESUME, RUNS, argument, budget, command, is_network, png, writable
from .training import TRAINING, train

CLAIMS = {"claim": "in words", "measured": "in words", "passed": "true, false, or null if it was not measured"}
NETWORK_ARGUMENT = argument("mobilenet_v2", NETWORK, check=is_network)
BATCH_SIZE = setting(1, "examples of a step", minimum=1)


@command("plan", one={
    "network, device": "names", "file": "the page", "plans": "their names", "planned": "device memory of each, bytes",
    "fusions": "of each plan, what each kind saves in a step: kind, description, launches and nbytes",
})  # fmt: skip
def page(
    network: str = NETWORK_ARGUMENT,
    alpha: float = ALPHA,
    batch_size: int = BATCH_SIZE,
    html: Path = setting(Path("plan.html"), "the file to write", check=writable, metavar="FILE"),
    plan: str = setting("keep_all", "a policy or a budget, as '6 MB stored'; see `edgelearn memory compare`"),
    beside: str | None = setting(None, "another plan, to show the differences only", metavar="PLAN"),
    batchnorm: str = setting("batch", choices=("moving", "batch")),
    rounds: int = setting(0, "steps to measure, for times of launches beside the predicted ones", minimum=0),
    device: str | None = DEVICE,
) -> dict[str, Any]:
    """Write a training plan as a page for a browser: layers, their bytes and times, and memory over a step."""
    chosen, names = choose_device(device).device, [plan, *([beside] if beside else [])]
    net = find_network(network, alpha).network
    plans = [named_plan(name, net, chosen, batch_size, batchnorm, progress=log) for name in names]
    measured: dict[Launch, float] = {}
    if rounds:
        from edgelearn.lab.profile.roofline import time_launches

        timings = time_launches(plans, chosen, rounds)
        measured = {timed.launch: timed.median for timing in timings for timed in timing.launches}
    saved = [fusions(each) for each in plans]
    shown = plans[0].show(*plans[1:], names=(plan, beside or ""), predicted=launch_times(chosen).seconds,
                          measured=measured, fusions=saved)  # fmt: skip
    shown.save(html)
    rows = [(each.kind, f"{each.launches:,}", f"{each.nbytes / MB:,.2f}") for each in saved[0]]
    notes = [f"{each.kind}: {each.description}" for each in saved[0]]
    show(Table(("saved by fusion", "launches", "MB"), rows, notes=notes, right=True))
    print(f"{html}: {' beside '.join(names)}. Open it in a browser.")
    return {"network": net.name, "device": chosen.id, "file": html, "plans": names,
            "planned": [each.peak_bytes for each in plans],
            "fusions": [[asdict(each) for each in kinds] for kinds in saved]}  # fmt: skip


PLAN = {
    "network, device, budget": "names", "batch_size, micro_batch": "examples", "planned": "all device memory, bytes",
    "process_predicted": "growth of the process, bytes; without the device's memory on a GPU",
    "stored, peak, paged": "activations between the passes, at their peak, and outside the device, bytes",
    "predicted_seconds": "of a step", "measured_launches": "share of them whose time was measured",
    "shares": "layer, purpose and nbytes", "timeline": "layer, forward, nbytes and paged, in order",
    "board": "with --target cortex-m choice, trainings, ruled_out, and most other entries are null; else null",
}  # fmt: skip


@command("memory plan", "the fastest plan within a budget, explained", one=PLAN)
def plan(
    network: str = NETWORK_ARGUMENT,
    alpha: float = ALPHA,
    batch_size: int = BATCH_SIZE,
    budget: str | None = budget(None, "such as 8MB, or '8MB stored, 20MB peak'"),
    count: str = setting(
        "device", "the kind of memory that SIZE limits if it names none: all device memory (default), activations at "
        "their peak, those stored between the passes, the predicted growth of the process", choices=tuple(COUNTS),
    ),
    allow: tuple[str, ...] = setting(
        (), "extra strategies for the planner, fewer bits, which is lossy, or memory outside the device",
        choices=tuple(ALLOWED), extensible=True, metavar="STRATEGY",
    ),
    pages: str | None = setting(
        None, "with --allow paged: to a file there, not to the host's memory", metavar="DIR"
    ),
    batchnorm: str = setting(
        "auto", "(default: batch; of a microcontroller moving)", choices=("auto", "moving", "batch")
    ),
    target: str | None = setting(
        None, "a microcontroller instead of a device: layers, micro-batch, precision and activation memory are chosen "
        "so that the linker's map fits", choices=("cortex-m",),
    ),
    sram: str | None = setting(None, "with --target: its memory (default 256 KiB)", check=budgets, metavar="SIZE"),
    flash: str | None = setting(None, "with --target: its flash (default 1 MiB)", check=budgets, metavar="SIZE"),
    layers: bool = setting(False, "a row for each layer"),
    plot: Path | None = png("draw the timeline there"),
    device: str | None = DEVICE,
) -> Answer:  # fmt: skip
    if target:
        return _for_board(network, alpha, batch_size, batchnorm, sram, flash)
    if sram or flash:
        raise PlanError("--sram and --flash are a microcontroller's: add --target cortex-m.")
    chosen = choose_device(device).device
    if pages and "paged" not in allow:
        raise PlanError("--pages is for offloading, which isn't allowed: add --allow paged, or leave --pages out.")
    # `count` for each part of the budget that doesn't name the kind of memory
    parts = [part.strip() for part in (budget or "").split(",")]
    limits = [part if part.lower().endswith(tuple(COUNTS)) else f"{part} {count}" for part in parts]
    name = "keep_all" if budget is None else ", ".join(limits)
    allowed = [
        Offload(pages) if each == "paged" else ALLOWED.get(each) or import_instance(each, Encoding) for each in allow
    ]
    net = find_network(network, alpha).network
    statistics = "batch" if batchnorm == "auto" else batchnorm
    made = named_plan(name, net, chosen, batch_size, statistics, allowed, log)
    times, explanation = launch_times(chosen, allowed if made.paged_bytes else ()), explain(made)
    print(f"{explanation}\n")
    if layers:
        show(explanation.table())
    print(explanation.timetable(), end="\n\n")
    besides = " besides the device's" if made.traits.gpu else ""
    print(f"Process, predicted: {made.process_bytes / MB:.2f} MB{besides}")
    known = times.known(made)
    print(f"Predicted: {times.step(made) * 1e3:.1f} ms a step ({times.origin}; {known:.0%} of its launches)")
    if plot:
        figures.saved(memory_plans.plot_timeline(made, name), plot)
    accounted = explanation.accounting
    return Answer({
        "network": net.name, "device": chosen.id, "batch_size": made.request.batch_size,
        "micro_batch": made.request.micro_batch, "budget": name, "planned": made.peak_bytes,
        "process_predicted": made.process_bytes,
        **{each: accounted and getattr(accounted, each) for each in ("stored", "peak", "paged")},
        "predicted_seconds": times.step(made), "measured_launches": known, "shares": explanation.shares,
        "timeline": explanation.timeline, "board": None,
    })  # fmt: skip


def _for_board(
    network: str, alpha: float, batch_size: int, batchnorm: str, sram: str | None, flash: str | None
) -> Answer:
    """The answer of `memory plan` for a microcontroller."""
    from edgelearn.bundles.cortex_m import Board
    from edgelearn.bundles.fitting import plan_for_board
    from edgelearn.train.loading import as_network

    found = plan_for_board(
        as_network(network, alpha), Board.of(sram, flash), batch_size, batchnorm=batchnorm, progress=log
    )  # fmt: skip
    show(found.table())
    best = found.trainings[0] if found.trainings else None
    record = dict.fromkeys(entry for names in PLAN for entry in names.split(", ")) | {
        "network": found.network, "device": "cortex-m", "batch_size": batch_size,
        "micro_batch": best and best.micro_batch, "planned": best and best.plan.peak_bytes, "board": found.to_dict(),
    }  # fmt: skip
    return Answer(record, 0 if best else 1)


@command("memory fit", "combinations of precision, memory, micro-batch and layers that fit", one={
    "network, budget": "names", "batch_size": "examples",
    "combinations": "those that fit, best first: combination, device_bytes, peak_bytes, process_bytes (predicted), "
                    "seconds, and what differs from float32 with all layers",
    "largest_micro_batch": "that fits, or null", "refused": "combination, bytes and reason of those that don't fit",
    "refusal": "in words where nothing fits", "times": "where the seconds come from",
})  # fmt: skip
def fit(
    network: str = argument(help=NETWORK, check=is_network),
    budget: str = budget(
        help="such as '20 MB' of device memory, '20 MB peak' of activations and workspace, '8 MB stored', "
        "or '80 MB process'"
    ),
    batch_size: int = setting(32, "examples of a step", minimum=1),
    alpha: float = ALPHA,
    precision: tuple[str, ...] = setting(PRECISIONS, "those to try", choices=PRECISIONS),
    trained: tuple[str, ...] = setting(
        (), "layers to train: patterns such as 'dense', or 'from LAYER' (default: all, the upper half, the last)",
        metavar="LAYERS",
    ),
    batchnorm: str = setting("auto", choices=("auto", "moving", "batch")),
    device: str | None = DEVICE,
) -> Answer:  # fmt: skip
    from edgelearn.train.loading import as_network

    patterns = [()] + [(pattern,) for pattern in trained] if trained else None
    found = plan_for(
        as_network(network, alpha), budget, batch_size, precision=precision, trained=patterns, batchnorm=batchnorm,
        device=device, progress=log,
    )  # fmt: skip
    show(found.table())
    return Answer(found.to_dict(), 0 if found.combinations else 1)


@command("memory compare", "memory and time of a step by many plans, in turn", one={
    "command": "the command",
    "plans": "plan, seconds (a number a round), bytes: stored, peak, paged, planned, allocated, process, "
             "process_predicted; loss, predicted (seconds), measured_launches, network, device, noisy",
})  # fmt: skip
def compare(
    network: str = NETWORK_ARGUMENT,
    alpha: float = ALPHA,
    batch_size: int = BATCH_SIZE,
    plans: tuple[str, ...] = setting(
        (), "some of them, as 'keep_all' '6 MB stored', or MODULE:NAME of a policy", metavar="PLAN"
    ),
    rounds: int = setting(9, minimum=1),
    chart: Path | None = png("draw time over memory there"),
    device: str | None = DEVICE,
) -> dict[str, Any]:
    measured = memory_plans.compare(network, plans, batch_size, rounds, alpha=alpha, device=device or "", progress=log)
    show(memory_plans.table(measured))
    if chart:
        figures.saved(memory_plans.plot(measured), chart)
    return {"command": answer.command_line, "plans": measured}


@command("memory measure", "times of launches on this device, stored for plans", one={
    "device": "name", "launches": "number of measured launches", "between": "seconds more for each launch of a step",
    "fixed": "seconds more for each step", "file": "where they are stored",
})  # fmt: skip
def measure(
    network: str = NETWORK_ARGUMENT,
    alpha: float = ALPHA,
    batch_size: int = BATCH_SIZE,
    rounds: int = setting(20, minimum=1),
    busy: bool = setting(False, "store times although other programs use the cores"),
    device: str | None = DEVICE,
) -> dict[str, Any]:
    from edgelearn import tuned
    from edgelearn.lab.profile import measure_launches

    chosen = choose_device(device).device
    plans = memory_plans.plans_to_measure(find_network(network, alpha).network, chosen, batch_size)
    stored, path = measure_launches(list(plans.values()), chosen, rounds, busy), tuned.path_of_times(chosen)
    print(
        f"{plural(len(stored.seconds), 'launch')} of {chosen.id} measured, stored in {path}; a step takes "
        f"{stored.between * 1e6:.1f} µs more for each, and {stored.fixed * 1e6:.0f} µs"
    )
    counts = {"launches": len(stored.seconds), "between": stored.between, "fixed": stored.fixed}
    return {"device": chosen.id, "file": path, **counts}


@command("memory train", "one training from scratch", one=TRAINING)
def train_one(config: MemoryConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(MemoryExperiment, config, runs, resume)


@command("memory through-time", "an LSTM over numbers of steps: memory and time by plan and budget", one={
    "units, examples": "of the LSTM and of a batch", "device": "name",
    "rows": "steps, plan, stored and planned (bytes), launches, seconds of an update, and whether gradients have the "
    "same bits as with keep_all",
})  # fmt: skip
def through_time(
    steps: tuple[int, ...] = setting((16, 32, 64, 128, 256), "lengths of a sequence", minimum=2),
    units: int = setting(32, "of the LSTM", minimum=1),
    examples: int = setting(12, "of a batch", minimum=1),
    rounds: int = setting(9, "updates of each plan to time", minimum=1),
    plot: Path | None = png("draw the curves there"),
    markdown: bool = MARKDOWN,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    """Plan and time an update of an LSTM, whose steps are kept or computed again, by policies and by budgets for the
    stored activations of 75, 50 and 25 % of what keeping all takes."""
    from edgelearn.experiments.through_time import through_time

    return shown(through_time(steps, units, examples, rounds, device, log), markdown, plot)


@command("memory check", "the claims on MobileNet V2: passed, failed or not measured", many=CLAIMS)
def check(
    rounds: int = setting(9, "of steps by all plans, for times", minimum=1),
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> Answer:
    from edgelearn.experiments import memory

    found = memory.check(choose_device(device).device, runs, rounds)
    show(found.table())
    return Answer(found.verdicts, found.status)
