"""Find the fastest variants and tile sizes of the kernels on a device, and store them for all plans made on it.

Runs whole training and prediction steps, for some minutes. Ctrl-C saves the results so far; the same command continues
where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import parser as names
from .answer import Answer
from .parser import number

MINUTES, MINUTES_GPU = 6, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", nargs="*",
        help="one of `edgelearn bench` but no single op, as train:16 or resnet18/train:16; cached:163/15 for "
             "micro-batches of 15; or flowers-sample "
             "(default: what fits the kind of device)")  # fmt: skip
    names.add_device(parser)
    names.add_compute(parser)
    add("--minutes", type=number(least=0.01),
        help=f"spend about so long at most (default: {MINUTES}, on a GPU {MINUTES_GPU})")  # fmt: skip
    add("--again", action="store_true", help="measure settled choices again")
    add("--folder", type=Path, help="store the results here (default: the user's folder, where plans find them)")


def run(options: argparse.Namespace) -> Answer:
    from rich.progress import Progress, TimeElapsedColumn

    from edgelearn.lab.tuning import Tuner, Work, defaults
    from edgelearn.runtime import choose_device
    from edgelearn.tuned import find

    device = choose_device(options.device).device
    named = {
        work.name: work
        for kind in options.compute
        for text in options.workload or defaults(device.is_gpu, kind)
        for work in [Work.parse(text, kind)]
    }
    works = list(named.values())
    print(f"{device.id}: {find(device)}")
    tuner = Tuner(device, options.folder)
    limit = options.minutes or (MINUTES_GPU if device.is_gpu else MINUTES)
    try:
        with Progress(TimeElapsedColumn(), *Progress.get_default_columns()) as bar:
            task = bar.add_task("starting", total=1.0)
            report = tuner.tune(
                works,
                limit,
                options.again,
                lambda part, name: bar.update(task, completed=part, description=name),
            )
            bar.update(task, completed=1.0)
    except KeyboardInterrupt:
        print(f"Results are saved in {tuner.path}; the same command continues.", file=sys.stderr)
        raise
    print(report)
    steps = {name: report.results.workloads[name] for name in report.names}
    return Answer({"device": device.id, "file": report.path, "workloads": steps})
