"""Show where the time of a step goes, and the least it could take; or predict it for another device.

A workload is one of those of `edgelearn bench`, such as forward:16 or resnet18/forward:16. --project predicts
without measuring, for devices that are described in edgelearn/lab/profile/devices, or in a JSON file of the same form.
"""

from __future__ import annotations

import argparse

from . import parser as names
from .answer import Answer, width
from .parser import whole, written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", nargs="*", default=["train:1"], help="kind and batch size, as in forward:16 (default: train:1)")
    add("--network", type=names.network, default="mobilenet_v1", metavar="NETWORK",
        help=f"{names.NETWORK} (default: %(default)s)")  # fmt: skip
    names.add_device(parser)
    names.add_compute(parser)
    add("--rounds", type=whole(1), default=20, help="steps to measure (default: 20)")
    add("--layers", action="store_true", help="a row for each layer, not for each kind of launch")
    add("--trace", type=written, metavar="FILE",
        help="write the step there as a trace for chrome://tracing or ui.perfetto.dev")  # fmt: skip
    add("--plot", type=written, metavar="FILE", help="draw the roofline there, as PNG")
    add("--project", nargs="*", metavar="NAME|FILE", help="predict for these devices (default: all described)")


def run(options: argparse.Namespace) -> Answer:
    from edgelearn.errors import EdgelearnError
    from edgelearn.lab.bench.engine import make_request
    from edgelearn.lab.bench.workloads import Workload

    workloads = [
        Workload.parse(text, network=options.network, compute=kind)
        for text in options.workload for kind in options.compute
    ]  # fmt: skip
    requests = {workload.title: make_request(workload, workload.micro_batch) for workload in workloads}
    if (options.trace or options.plot) and len(requests) > 1:
        raise EdgelearnError("--trace and --plot show one step: name a single workload.")
    return _measure(requests, options) if options.project is None else _project(requests, options)


def _measure(requests: dict, options: argparse.Namespace) -> Answer:
    from edgelearn import atomic
    from edgelearn.compile import make_plan
    from edgelearn.lab.profile import DeviceRecord, measure_peaks, plot, profile, roofline_table, trace
    from edgelearn.lab.runs import figures
    from edgelearn.runtime import Context, choose_device

    device = choose_device(options.device).device
    peaks = measure_peaks(Context(device))
    rooflines = []
    for name, request in requests.items():
        rooflines.append(profile(make_plan(request, device), device, options.rounds, name, peaks))
        print(roofline_table(rooflines[-1], width(), options.layers))
    if options.trace:
        atomic.write_json(options.trace, trace(rooflines[0]))
    if options.plot:
        atomic.write_bytes(options.plot, figures.to_png(plot(rooflines[0])))
    return Answer(DeviceRecord.of(rooflines).to_dict())


def _project(requests: dict, options: argparse.Namespace) -> Answer:
    from edgelearn.lab.profile import EdgeDevice, edge_devices, project, projection_table

    devices = [EdgeDevice.load(name) for name in options.project or edge_devices()]
    projections = [project(request, devices, name) for name, request in requests.items()]
    for projection in projections:
        print(projection_table(projection, width()))
    print(projections[-1].sources)
    return Answer([projection.to_dict() for projection in projections])
