"""Sweeps: an experiment with several settings and seeds. What the run store has already isn't trained again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from edgelearn.errors import EdgelearnError
from edgelearn.lab.runs import Run, RunStore

from .config import Config, find_setting
from .experiment import Experiment, silent
from .known import is_done, known_runs


@dataclass(frozen=True)
class Job:
    """A training of a sweep, which any process can run.

    Arguments:
    - `experiment`: the class.
    - `config`: its configuration.
    - `root`: folder of the run store, which all processes of the sweep share.
    """

    experiment: type[Experiment]
    config: Config
    root: str


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Arguments:
    - `run`: id of the run; "" if none began.
    - `results`: of the run, None if there are none.
    - `problem`: why there are none (default "").
    """

    run: str
    results: dict[str, Any] | None
    problem: str = ""


Engine = Callable[[Sequence[Job]], Iterator[tuple[int, Outcome]]]  # yields (number of the job, outcome) as they end


def combine(config: Config, varied: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[Config]:
    """Return a configuration for each combination of values and each seed.

    Arguments:
    - `config`: the settings that all share.
    - `varied`: values by name of the setting.
    - `seeds`: of everything random.

    Raises ConfigError for an unknown setting or an invalid value.
    """
    for name in varied:
        find_setting(type(config), name)
    found = []
    for values in product(*varied.values()):
        each: Any = dict(zip(varied, values, strict=True))
        found += [replace(config, **each, seed=seed) for seed in seeds]
    return found


def train(job: Job) -> Outcome:
    """Run a job: nothing if its training is done, the rest if it was interrupted. An error is the outcome's problem.

    Raises KeyboardInterrupt after an interrupt; the run can be continued.
    """
    store, run = RunStore(job.root), find(job)
    try:
        if is_done(run):
            results = {}
        elif run is not None:
            results = job.experiment.resume(run.id, store, [], silent)
        else:
            results = job.experiment.start(job.config, store, [], silent)
    except EdgelearnError as error:
        run = find(job)
        return Outcome(run.id if run else "", None, str(error))
    if results is None:
        raise KeyboardInterrupt
    run = find(job)
    assert run is not None
    if run.status != "finished":
        return Outcome(run.id, None, run.record["error"]["message"])
    return Outcome(run.id, run.record["results"])


def in_turn(jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
    """The engine local: run jobs in this process, one after the other."""
    for number, job in enumerate(jobs):
        yield number, train(job)


def find(job: Job) -> Run | None:
    """The newest run of a job in its store, a finished one if there is one."""
    experiment = job.experiment

    def training(run: Run) -> str:
        return experiment.training(experiment.config_type.from_dict(run.config))

    return known_runs(RunStore(job.root), experiment.kind, training).get(experiment.training(job.config))
