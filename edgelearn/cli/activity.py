"""Activity recognition from the motion sensors of phones and watches, tested on people who were left out.

`train` leaves one person out, `people` each in turn. Without data people are drawn."""

from __future__ import annotations

from typing import Any

from edgelearn.experiments.activity import ActivityConfig, ActivityExperiment, leave_one_out
from edgelearn.experiments.config import setting
from edgelearn.lab.runs import RunStore
from edgelearn.train import ProgressBar

from .answer import Answer, log, show
from .parser import MARKDOWN, RESUME, RUNS, command
from .training import TRAINING, train


@command("activity train", "leave one person out", one=TRAINING | {
    "results": "as of the other trainings, and personal: accuracy on all recordings but the first, before and after "
    "training on that; null after an interrupt",
})  # fmt: skip
def train_one(config: ActivityConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(ActivityExperiment, config, runs, resume)


@command("activity people", "leave each person out in turn", one={
    "network, sensors, precision, device, description": "names, and the data in words",
    "accuracy, lift": "means over the people, and half of their 95 % intervals: of the accuracy, and of what a "
    "person's first recording adds", "median, published": "accuracy: median over the people, and "
    "that of the study, or null",
    "people": "by person: accuracy, run, and before and after training on the first recording",
}, skip=("person",))  # fmt: skip
def people(
    config: ActivityConfig,
    people: tuple[str, ...] = setting((), "names (default: everybody)", metavar="NAME"),
    markdown: bool = MARKDOWN,
    runs: RunStore = RUNS,
) -> dict[str, Any]:
    """Train without each person in turn, and test on that person.

    Each training is a run; the same command finds finished ones again and continues an interrupted one.
    """
    found = leave_one_out(config, people, store=runs, log=log, callbacks=lambda: [ProgressBar()])
    show(found.table(), markdown)
    return found.to_dict()
