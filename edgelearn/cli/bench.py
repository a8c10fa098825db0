"""Compare speed and memory with PyTorch, Keras and tinygrad.

Contenders take turns, each in a process of its own, with the same weights and inputs. Those that are not installed are
listed as such: pip install torch==2.13.0 'edgelearn[tensorflow]' tinygrad. On a GPU, those that use OpenCL take part,
and PyTorch where it computes with CUDA.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from . import parser as names
from .answer import Answer, width
from .parser import whole, written

if TYPE_CHECKING:
    from edgelearn.lab.bench.report import BenchReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", nargs="*", default=["forward:1", "train:1", "cached:163"],
        help="forward, train, train_bn, accumulate or cached, with a batch size as in forward:16; a single op as in "
             "train/conv_pw_1:16; patterns as in 'forward/*'")  # fmt: skip
    add("--network", type=names.network, default="mobilenet_v1", metavar="NETWORK",
        help=f"{names.NETWORK} (default: %(default)s)")  # fmt: skip
    add("--contenders", nargs="+", metavar="NAME", help="edgelearn, torch, keras, tinygrad (default: all installed)")
    add("--only", nargs="+", metavar="PATTERN", default=["*"], help='variants such as "torch compile*"')
    names.add_device(parser)
    names.add_compute(parser)
    add("--cores", type=whole(1), help="processor cores for everyone (default: all)")
    add("--rounds", type=whole(1), default=9, help="blocks of steps of each contender (default: %(default)s)")
    add("--seed", type=whole(0), default=0)
    add("--from", dest="source", metavar="FILE", help="show a report that --json or --save wrote, and measure nothing")
    add("--chart", type=written, metavar="PNG", help="draw everyone's time over edgelearn's")
    add("--markdown", action="store_true", help="print a table in Markdown, a row a workload")


def run(options: argparse.Namespace) -> Answer:
    from edgelearn.lab.bench.report import BenchReport, as_markdown, as_text, save_chart

    report = BenchReport.read(options.source) if options.source else _measure(options)
    if options.markdown:
        print(as_markdown(report), end="")
    else:
        print(as_text(report, width()), end="")
    if options.chart:
        save_chart(report, options.chart)
    return Answer(report.to_dict())


def _measure(options: argparse.Namespace) -> BenchReport:
    from edgelearn.lab.bench.run import BenchConfig
    from edgelearn.lab.bench.run import run as measure
    from edgelearn.lab.bench.workloads import Workload

    def report_progress(line: str) -> None:
        print(line, file=sys.stderr)

    drawn = options.seed, options.network
    workloads = [workload for text in options.workload for workload in Workload.expand(text, *drawn)]
    config = BenchConfig(rounds=options.rounds)
    selected = options.contenders, options.only, options.cores, options.device
    report = measure(workloads, *selected, config, report_progress, compute=options.compute)
    report.command = options.command_line
    return report
