"""Techniques compared: depths of training, adaptation without labels, learning from a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelearn.experiments.adaptation import AdaptationConfig, compare_adaptation
from edgelearn.experiments.depth import DepthConfig, compare_depths
from edgelearn.experiments.personalisation import PersonalConfig, compare_asking, compare_learning
from edgelearn.experiments.serial_depth import SERIAL_DEPTHS, compare_serial
from edgelearn.lab.runs import RunStore

from .answer import log, shown
from .parser import FIELDS, GROUPS, MARKDOWN, RUNS, command, png, setting

GROUPS["personal"] = "Learning from a user: strategies of asking for labels, and examples learnt one at a time."


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
        return shown(compare_serial(serial, depths, steps, config.device, log), markdown)
    found = compare_depths(config, store=runs, log=log)
    record = shown(found, markdown, plot)
    print(f"Best for their memory: {', '.join(found.pareto)}.")
    if curves:
        found.plot_curves(curves)
    return record


FIELDS["depth --serial"] = "object", {
    "device": "name",
    "rows": "by network and depth: trained, macs, seconds of a step (device, serial), speed_up and the relative "
    "difference of losses",
}  # fmt: skip


@command("adapt", one={
    "device, description": "name; data and networks in words",
    "memory": "bytes by method: planned, which is what is allocated; of PyTorch the peak",
    "streams": "of each seed: kind of corruption, order, method, error and unadapted (wrong answers, with and "
    "without adapting), examples, updates, shift in nats, and off, why the guard went back",
})  # fmt: skip
def adapt(
    config: AdaptationConfig, plot: Path | None = png("draw the errors there"), markdown: bool = MARKDOWN
) -> dict[str, Any]:  # fmt: skip
    """Adapt a network to corrupted pictures without labels, by statistics, TENT and EATA.

    Streams are shuffled, in the order of the labels, and one picture at a time. Errors have intervals over --seeds.
    """
    return shown(compare_adaptation(config, log=log), markdown, plot)


@command("personal ask", "strategies of asking for labels", one={
    "task, device, description": "names; data and network in words", "labels": "numbers of labels",
    "accuracies": "by strategy, of each seed the test accuracies at these numbers",
}, skip=("per_class", "memory", "updates", "batch_size"))  # fmt: skip
def ask(
    config: PersonalConfig, plot: Path | None = png("draw accuracy over labels there"), markdown: bool = MARKDOWN
) -> dict[str, Any]:  # fmt: skip
    """Ask for labels by each strategy, and train a last layer on them: typical examples first, close answers, large
    gradients, at random."""
    return shown(compare_asking(config, log=log), markdown, plot)


@command("personal learn", "examples learnt one at a time", one={
    "task, device, description, per_class": "names; data and network in words; examples of each class",
    "memory, planned": "bytes of kept examples, and of all with the plans",
    "rows": "of each seed: accuracies of batch and single (all at once, one at a time), old, replay and plain (of old "
    "classes, before a new one, after it with replay and without), new and new_plain (of that one), milliseconds",
}, skip=("labels", "at_once", "strategies"))  # fmt: skip
def learn(config: PersonalConfig, markdown: bool = MARKDOWN) -> dict[str, Any]:
    """Learn examples one at a time with latent replay, beside all at once; then a new class beside old ones."""
    return shown(compare_learning(config, log=log), markdown)
