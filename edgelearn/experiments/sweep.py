"""Sweeps: an experiment with several settings and seeds, here or on a Ray cluster. What the run store has already isn't
trained again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from typing import Any

from edgelearn.errors import EdgelearnError, NonFiniteError, RunError
from edgelearn.extensions import import_path
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Callback

from .config import Config, find_setting
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
