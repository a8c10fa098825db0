"""Every depth of training of one network, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelearn.experiments.depth import DepthConfig, compare_depths
from edgelearn.experiments.serial_depth import SERIAL_DEPTHS, compare_serial
from edgelearn.lab.runs import RunStore

from .answer import log, show
from .parser import FIELDS, MARKDOWN, RUNS, command, png, setting


@command("depth", one={
    "task, network, device, description": "names, and data and weights in words", "seconds": "of everything",
    "depths": "by depth: accuracy with its interval, trained parameters, macs of a step with one example, bytes "
    "(stored activations; update, with gradients and optimizer state; planned), and the trainings as in el.compare",
})  # fmt: skip
def depth(
    config: DepthConfig,
    plot: Path | None = png("draw accuracy over memory there"),
    curves: Path | None = png("draw the test accuracy over the epochs there"),
    serial: tuple[str, ...] = setting(
        (), "train nothing: time a step of each depth of these in serial C and on the device", metavar="NETWORK"
    ),
    steps: int = setting(3, "steps of each that --serial times", minimum=1),
    markdown: bool = MARKDOWN,
    runs: RunStore = RUNS,
) -> dict[str, Any]:
    """Train one network at every depth: last layers, biases, sparse updates, adapters, all, from scratch.

    Each training is a run; the same command finds finished ones again. Accuracy stands beside memory as planned and as
    the process held it, multiply-adds, time, and joules where a counter exists.
    """
    if serial:
        depths = [depth for depth in config.depths if depth in SERIAL_DEPTHS]
        steps_of = compare_serial(serial, depths, steps, config.device, log)
        if markdown:
            print(steps_of.table().to_markdown())
        else:
            show(steps_of.table())
        return steps_of.to_dict()
    found = compare_depths(config, store=runs, log=log)
    if markdown:
        print(found.table().to_markdown())
    else:
        show(found.table())
    print(f"Best for their memory: {', '.join(found.pareto)}.")
    if plot:
        found.plot(plot)
    if curves:
        found.plot_curves(curves)
    return found.to_dict()


FIELDS["depth --serial"] = "object", {
    "device": "name",
    "rows": "by network and depth: trained, macs, seconds of a step (device, serial), speed_up and the relative "
    "difference of losses",
}  # fmt: skip
