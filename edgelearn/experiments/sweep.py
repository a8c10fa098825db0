"""Sweeps: an experiment with several settings and seeds, here or on a Ray cluster. What the run store has already isn't
trained again.

Sampled sweeps: Optuna proposes settings from ranges and choices, at random or from the results of earlier trials.
Nothing but runs is stored: a sweep that goes on asks the seeded sampler again, and tells it what finished runs gave. So
it makes the trials that an uninterrupted one makes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from math import fsum, isfinite
from typing import Any

from edgelearn.errors import EdgelearnError, NonFiniteError, RunError, UsageError
from edgelearn.extensions import import_path
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Callback

from .config import Config, ConfigError, Setting, find_setting
from .experiment import silent
from .turn import VARIABLE


def known_runs(store: RunStore, kind: str, key: Callable[[Run], str | None]) -> dict[str, Run]:
    """The newest run of each training of a kind, a finished one if there is one.

    Arguments:
    - `key`: of a run, equal for the same training; None, or a RunError, for a run to leave out.
    """
    newest: dict[str, Run] = {}
    for summary in store.list():
        if summary.kind == kind and summary.status != "damaged":
            run = store.open(summary.id)
            try:
                training = key(run)
            except RunError:  # of a newer version
                continue
            if training and (training not in newest or (summary.status == "finished" != newest[training].status)):
                newest[training] = run
    return newest


def is_done(run: Run | None) -> bool:
    """True for a training that is finished, or that diverged and would again."""
    return run is not None and (run.status == "finished" or diverged(run))


def diverged(run: Run) -> bool:
    """True for a training that ended in a NaN or an infinity."""
    return run.status == "failed" and run.record["error"]["type"] == NonFiniteError.__name__


def can_go_on(run: Run | None) -> bool:
    """True for a training that was interrupted or failed, and can be resumed."""
    return run is not None and run.status in ("interrupted", "failed")


@dataclass(frozen=True)
class Job:
    """A training of a sweep, which any process can run.

    Arguments:
    - `experiment`: the Experiment.
    - `config`: its configuration.
    - `root`: folder of the run store, which all processes of the sweep share.
    """

    experiment: Any
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


def train(job: Job, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Run a job: nothing if its training is done, the rest if it was interrupted. An error is the outcome's problem.

    Arguments:
    - `callbacks`: of the training (default none).

    Raises KeyboardInterrupt after an interrupt; the run can be continued.
    """
    store, run = RunStore(job.root), find(job)
    try:
        if is_done(run):
            results = {}
        elif run is not None:
            results = job.experiment.resume(run.id, store, list(callbacks), silent)
        else:
            results = job.experiment.start(job.config, store, list(callbacks), silent)
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


# No telemetry; patience with a busy machine, since Ray's daemon ends where its agent doesn't start within seconds; and
# GPUs stay visible to OpenCL.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "180000",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip
_RETRIES = 3  # of a job whose machine dies; it continues its run


def on_ray(cores: int = 1) -> Engine:
    """Return the engine ray: as many jobs at a time as the cluster has cores for. It uses the cluster that the variable
    RAY_ADDRESS names, else this machine. All machines need edgelearn, the data, and the folder of the runs.

    Arguments:
    - `cores`: of each job (default 1).

    Raises RunError if Ray isn't installed.
    """
    if find_spec("ray") is None:
        raise RunError("The engine 'ray' needs Ray: pip install ray. The engine 'local' needs nothing.")
    return lambda jobs: _run(jobs, cores)


def _run(jobs: Sequence[Job], cores: int) -> Iterator[tuple[int, Outcome]]:
    os.environ.update(ENVIRONMENT)  # of the processes that Ray starts, too
    import ray  # pyright: ignore[reportMissingImports]

    environment = {"env_vars": {"PYTHONPATH": import_path(), VARIABLE: ""}}  # its jobs share the devices
    ray.init(
        address=os.environ.get("RAY_ADDRESS"), include_dashboard=False, log_to_driver=False, runtime_env=environment
    )
    try:
        if (largest := max((node["Resources"].get("CPU", 0) for node in ray.nodes()), default=0)) < cores:
            raise RunError(f"A job wants {cores} cores, and the largest machine of the cluster has {largest:g}.")
        remote = ray.remote(num_cpus=cores, max_retries=_RETRIES)(train)
        waiting = {remote.remote(job): number for number, job in enumerate(jobs)}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            number = waiting.pop(done)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayError as error:
                outcome = Outcome("", None, str(error).strip().splitlines()[-1])
            yield number, outcome
    finally:
        ray.shutdown()


SAMPLERS = ("random", "tpe")


@dataclass(frozen=True)
class Range:
    """Numbers to draw from: whole ones if `low` and `high` are ints.

    Arguments:
    - `low`, `high`: the smallest and the largest number.
    - `log`: draw uniformly in the logarithm (default False).

    Raises UsageError for an empty or a reversed range, and for the logarithm of 0 or less.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise UsageError(
                f"a range goes from a smaller number to a larger one, LOW..HIGH, not {self.low}..{self.high}."
            )
        if self.log and self.low <= 0:
            raise UsageError(f"a logarithmic range begins above 0, not at {self.low}: give another, or leave :log out.")


Space = Mapping[str, Range | Sequence[Any]]  # by name of the setting: a range, or the values to choose from


def parse_range(setting: Setting, text: str) -> Range | None:
    """The range that a text LOW..HIGH or LOW..HIGH:log gives a setting; None for other texts, and settings that
    aren't numbers.

    Raises ConfigError for an invalid range, or one with values that the setting can't have.
    """
    numbers, _, scale = text.partition(":")
    low, dots, high = numbers.partition("..")
    if not dots or setting.type not in (int, float):
        return None
    if scale not in ("", "log"):
        raise ConfigError(setting.name, f"a range is LOW..HIGH or LOW..HIGH:log, not '{text}'.")
    try:
        found = Range(setting.type(low), setting.type(high), scale == "log")
    except ValueError:
        raise ConfigError(setting.name, f"a range is of two numbers ({setting.type.__name__}), not '{text}'.") from None
    except UsageError as error:
        raise ConfigError(setting.name, str(error)) from None
    for end in (found.low, found.high):
        setting.validate_one(end)
    return found


class Sampler:
    """Proposes settings, the same ones for the same seed and the same scores.

    Arguments:
    - `kind`: `"random"`, or `"tpe"`, the tree-structured Parzen estimator (Bergstra et al. 2011), which draws at random
      at first and then prefers what is like the trials with the highest scores.
    - `space`: what varies.
    - `seed`: of the random numbers.

    Raises RunError if Optuna isn't installed, UsageError for an unknown kind or if nothing varies.
    """

    def __init__(self, kind: str, space: Space, seed: int = 0) -> None:
        if kind not in SAMPLERS:
            raise UsageError(f"'{kind}' is no sampler: there are {', '.join(SAMPLERS)}.")
        if not space:
            raise UsageError("Nothing varies: give a setting a range, NAME=LOW..HIGH, or values, NAME=VALUE,VALUE.")
        if find_spec("optuna") is None:
            raise RunError("Samplers need Optuna: pip install 'edgelearn[sweeps]'. Sweeps of all values need nothing.")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.learns = kind == "tpe"  # from scores
        self._space = {name: _distribution(each) for name, each in space.items()}
        sampler = optuna.samplers.TPESampler(seed=seed) if self.learns else optuna.samplers.RandomSampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self) -> dict[str, Any]:
        """Return the settings of the next trial, by name."""
        return self._study.ask(self._space).params

    def tell(self, trial: int, score: float) -> None:
        """Report the score of a trial, by its number; a higher one is better."""
        self._study.tell(trial, score)


def _distribution(each: Range | Sequence[Any]) -> Any:
    from optuna import distributions

    if not isinstance(each, Range):
        return distributions.CategoricalDistribution(each)
    whole = isinstance(each.low, int) and isinstance(each.high, int)
    kind: Any = distributions.IntDistribution if whole else distributions.FloatDistribution
    return kind(each.low, each.high, log=each.log)


def search(
    sampler: Sampler, trials: int, jobs: Callable[[Mapping[str, Any]], Sequence[Job]], engine: Engine
) -> Iterator[tuple[int, Job, Outcome]]:
    """Train what a sampler proposes; yields (number of the trial, job, outcome) as jobs end. Trials that draw at random
    don't wait for each other.

    Arguments:
    - `trials`: number of trials.
    - `jobs`: returns the jobs of settings, one a seed.
    - `engine`: runs them.

    Raises RunError for results without an accuracy, by which trials are compared.
    """
    together = 1 if sampler.learns else trials
    for first in range(0, trials, together):
        asked = {trial: list(jobs(sampler.ask())) for trial in range(first, first + together)}
        distinct = list(dict.fromkeys(job.config for each in asked.values() for job in each))  # of choices, some recur
        wanted = {config: [(trial, job) for trial, each in asked.items() for job in each if job.config == config]
                  for config in distinct}  # fmt: skip
        outcomes: dict[int, list[Outcome]] = {trial: [] for trial in asked}
        for number, outcome in engine([wanted[config][0][1] for config in distinct]):
            accuracy(outcome)  # before others are trained in vain
            for trial, job in wanted[distinct[number]]:
                outcomes[trial].append(outcome)
                yield trial, job, outcome
        for trial, each in outcomes.items():
            sampler.tell(trial, score(each))


def score(outcomes: Sequence[Outcome]) -> float:
    """The mean accuracy of a trial over its seeds. A training that failed counts as 0, so that the sampler turns away
    from its settings.

    Raises RunError for results without an accuracy.
    """
    return fsum(map(accuracy, outcomes)) / len(outcomes)  # exact: the order in which they ended doesn't matter


def accuracy(outcome: Outcome) -> float:
    """The accuracy of a training, 0 if it failed. Raises RunError for results without one."""
    if outcome.results is None:
        return 0.0
    if (share := outcome.results.get("accuracy")) is None:
        raise RunError(
            f"Run {outcome.run} has no accuracy, by which a sampler compares trials: sweep without --sampler."
        )
    return share
