"""Adaptation to corrupted pictures without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelearn.experiments.adaptation import AdaptationConfig, compare_adaptation

from .answer import log, show
from .parser import MARKDOWN, command, png


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
    found = compare_adaptation(config, log=log)
    show(found.table(), markdown)
    if plot:
        found.plot(plot)
    return found.to_dict()
