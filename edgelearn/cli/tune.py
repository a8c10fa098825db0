"""Find the fastest variants and tile sizes of the kernels on a device, and keep them for all plans made on it.

Runs whole training and prediction steps of MobileNet, some minutes long. Ctrl-C keeps what was found by then; the same
command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .numbers import number

MINUTES, MINUTES_GPU = 6, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", nargs="*",
        help="a whole network's as for `edgelearn bench`, cached:163/15 for micro-batches of 15, or flowers-sample "
             "(default: what fits the kind of device)")  # fmt: skip
    add("--device", help="tune this device instead of the best one (any part of its name)")
    add("--minutes", type=number(least=0.01),
        help=f"spend about so long at most (default: {MINUTES}, on a GPU {MINUTES_GPU})")  # fmt: skip
    add("--again", action="store_true", help="measure anew what was tuned before")
    add("--folder", type=Path, help="keep the results here (default: your own, where plans find them)")


def run(options: argparse.Namespace) -> None:
    from rich.progress import Progress, TimeElapsedColumn

    from edgelearn.lab.tuning import Tuner, Work
    from edgelearn.lab.tuning.workloads import CPU, GPU
    from edgelearn.runtime import choose_device
    from edgelearn.tuned import find

    device = choose_device(options.device).device
    works = [Work.parse(text) for text in options.workload or (GPU if device.is_gpu else CPU)]
    print(f"{device.id}: {find(device)}")
    tuner = Tuner(device, options.folder)
    limit = options.minutes or (MINUTES_GPU if device.is_gpu else MINUTES)
    try:
        with Progress(TimeElapsedColumn(), *Progress.get_default_columns()) as bar:
            task = bar.add_task("starting", total=1.0)
            report = tuner.tune(
                works, limit, options.again, lambda part, name: bar.update(task, completed=part, description=name)
            )
            bar.update(task, completed=1.0)
    except KeyboardInterrupt:
        print(f"What was found is kept in {tuner.path}; the same command goes on.", file=sys.stderr)
        raise
    print(report)
