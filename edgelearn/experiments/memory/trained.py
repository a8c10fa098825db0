"""The accuracy of finished trainings: the reversible network against the plain one."""

from __future__ import annotations

from edgelearn.compile.memory.policies import EXACT, paged
from edgelearn.experiments.claim import Claim
from edgelearn.lab.runs import RunStore

from .config import MemoryConfig
from .job import MemoryExperiment

POINTS, SEEDS = 1.0, 3  # how far below is near enough; how many seeds at least


def check_trained(store: RunStore, task: str = "cifar10") -> Claim:
    """Over the seeds with which both networks were trained from scratch for as many epochs and with as large
    micro-batches as the task says, in ways that change no bit; open where these are too few."""
    wanted = MemoryExperiment.resolve(MemoryConfig(task))
    exact = {policy.__name__ for policy in (*EXACT, paged)}
    found: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for summary in store.list():
        if summary.kind == MemoryExperiment.kind and summary.status == "finished":
            config = MemoryConfig.from_dict(store.open(summary.id).config)
            settings = config.task, config.epochs, config.micro_batch
            if settings == (task, wanted.epochs, wanted.micro_batch) and config.activation_memory in exact:
                found[config.reversible].setdefault(config.seed, summary.results["accuracy"])
    plain, twin = found[False], found[True]
    seeds = sorted(set(plain) & set(twin))
    training = f"On {task}, {wanted.epochs} epochs from scratch"
    claim = f"{training}: reversible at most {POINTS:g} point below plain, {SEEDS} seeds"
    if len(seeds) < SEEDS:
        return Claim(claim, f"{len(seeds)} seeds trained: edgelearn memory train {task} [--reversible] --seed S", None)
    more = 100 * sum(twin[seed] - plain[seed] for seed in seeds) / len(seeds)
    mean = [sum(side[seed] for seed in seeds) / len(seeds) for side in (twin, plain)]
    return Claim(claim, f"{more:+.2f} points, {len(seeds)} seeds ({mean[0]:.2%}, {mean[1]:.2%})", more >= -POINTS)
