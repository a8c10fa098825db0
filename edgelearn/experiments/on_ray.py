"""Jobs of a sweep on Ray, which spreads them over the machines of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from edgelearn.errors import RunError
from edgelearn.extensions import import_path

from .sweep import Engine, Job, Outcome, train

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

    environment = {"env_vars": {"PYTHONPATH": import_path()}}
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
