"""The accuracy of finished trainings: the reversible network against the plain one."""

from __future__ import annotations

from edgelearn.compile.memory.policies import EXACT, paged
from edgelearn.experiments.claim import Claim
from edgelearn.lab.runs import RunStore

from .config import MemoryConfig
from .job import MemoryExperiment

POINTS, SEEDS = 1.0, 3  # largest loss of accuracy, smallest number of seeds


def check_trained(store: RunStore, task: str = "cifar10") -> Claim:
    """The claim on accuracy: mean over the seeds with which both networks were trained, with the task's own epochs and
    micro-batch and a policy that changes no bits. Not measured with less than SEEDS seeds."""
    wanted = MemoryExperiment.resolve(MemoryConfig(task))
    exact = {policy.__name__ for policy in (*EXACT, paged)}
    accuracies: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for summary in store.list():
        if summary.kind == MemoryExperiment.kind and summary.status == "finished":
            config = MemoryConfig.from_dict(store.open(summary.id).config)
            settings = config.task, config.epochs, config.micro_batch
            if settings == (task, wanted.epochs, wanted.micro_batch) and config.activation_memory in exact:
                accuracies[config.reversible].setdefault(config.seed, summary.results["accuracy"])
    plain, twin = accuracies[False], accuracies[True]
    seeds = sorted(set(plain) & set(twin))
    training = f"On {task}, {wanted.epochs} epochs from scratch"
    claim = f"{training}: reversible at most {POINTS:g} point below plain, {SEEDS} seeds"
    if len(seeds) < SEEDS:
        return Claim(claim, f"{len(seeds)} seeds trained: edgelearn memory train {task} [--reversible] --seed S", None)
    more = 100 * sum(twin[seed] - plain[seed] for seed in seeds) / len(seeds)
    mean = [sum(side[seed] for seed in seeds) / len(seeds) for side in (twin, plain)]
    return Claim(claim, f"{more:+.2f} points, {len(seeds)} seeds ({mean[0]:.2%}, {mean[1]:.2%})", more >= -POINTS)
