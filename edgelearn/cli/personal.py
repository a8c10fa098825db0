"""Learning from a user: strategies of asking for labels, and examples learnt one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelearn.experiments.personalisation import PersonalConfig, compare_asking, compare_learning

from .answer import log, show
from .parser import MARKDOWN, command, png


@command("personal ask", "strategies of asking for labels", one={
    "task, device, description": "names; data and network in words", "labels": "numbers of labels",
    "accuracies": "by strategy, of each seed the test accuracies at these numbers",
}, skip=("per_class", "memory", "updates", "batch_size"))  # fmt: skip
def ask(
    config: PersonalConfig, plot: Path | None = png("draw accuracy over labels there"), markdown: bool = MARKDOWN
) -> dict[str, Any]:  # fmt: skip
    """Ask for labels by each strategy, and train a last layer on them: typical examples first, close answers, large
    gradients, at random."""
    found = compare_asking(config, log=log)
    show(found.table(), markdown)
    if plot:
        found.plot(plot)
    return found.to_dict()


@command("personal learn", "examples learnt one at a time", one={
    "task, device, description, per_class": "names; data and network in words; examples of each class",
    "memory, planned": "bytes of kept examples, and of all with the plans",
    "rows": "of each seed: accuracies of batch and single (all at once, one at a time), old, replay and plain (of old "
    "classes, before a new one, after it with replay and without), new and new_plain (of that one), milliseconds",
}, skip=("labels", "at_once", "strategies"))  # fmt: skip
def learn(config: PersonalConfig, markdown: bool = MARKDOWN) -> dict[str, Any]:
    """Learn examples one at a time with latent replay, beside all at once; then a new class beside old ones."""
    found = compare_learning(config, log=log)
    show(found.table(), markdown)
    return found.to_dict()
