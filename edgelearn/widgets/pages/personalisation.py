"""Models that adapt and learn while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgelearn.experiments.adaptation import AdaptationConfig, compare_adaptation
from edgelearn.widgets.pictures import Waiting

from .shown import Shown


def adapt(
    task: str = "thicket", kinds: Sequence[str] = ("noise", "low_contrast", "night"), examples: int = 400,
    **settings: Any,
) -> Shown:  # fmt: skip
    """Adapt a network to corrupted pictures without labels, by each method.

    Arguments:
    - `task`: "thicket" (default), drawings of the package, or "cifar10".
    - `kinds`: of corruptions; see edgelearn.data.corruptions.
    - `examples`: pictures of a stream (default 400).
    - `settings`: others of AdaptationConfig, such as `seeds`.
    """
    small = {"batch_size": 50, "micro_batch": 25, "orders": ("shuffled",)}
    config = AdaptationConfig(task, kinds=tuple(kinds), examples=examples, **(small | settings))
    with Waiting("Training") as say:
        found = compare_adaptation(config, log=lambda text: say(text.capitalize()))
    return Shown(found.headline, found.plot(), found)
