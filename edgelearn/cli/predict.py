"""Name what is in pictures, with the network of a finished run."""

from __future__ import annotations

import argparse

from edgelearn.experiments.tasks import predict
from edgelearn.lab.runs import RunStore

from . import parser as names
from .answer import Answer
from .training import add_runs_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", nargs="+", help="JPEG or PNG files")
    parser.add_argument("--run", metavar="RUN", help="the run whose network is used (default: the newest)")
    add_runs_folder(parser)
    names.add_device(parser)


def run(options: argparse.Namespace) -> Answer:
    failed, found = 0, []
    for path, answer in predict(options.image, RunStore(options.runs), options.run, options.device):
        problem = answer if isinstance(answer, str) else None
        classes = [] if isinstance(answer, str) else [{"name": n, "probability": share} for n, share in answer]
        found.append({"image": path, "classes": classes, "problem": problem})
        if isinstance(answer, str):
            failed += 1
            print(f"{path}: {answer}")
        else:
            print(f"{path}: " + ", ".join(f"{name} {share:.1%}" for name, share in answer))
    return Answer(found, int(failed > 0))
