"""Training steps of one network by many plans, each in a process of its own, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np

from edgelearn.compile.memory.budget import COUNTS, budgets
from edgelearn.compile.memory.policies import find_policy
from edgelearn.display import Displayed
from edgelearn.errors import PlanError, RunError, UsageError
from edgelearn.extensions import check_name, is_reference
from edgelearn.graph import Network
from edgelearn.interop import find_network
from edgelearn.lab.measure import RoundsConfig, Sample, Worker, WorkerError, measure_in_turn, usable_cores

from .plans import PLANS, TORCH

WORKER = "edgelearn.experiments.memory.worker:PlanWorker"


@dataclass(frozen=True, repr=False)
class Measured(Displayed):
    """Measurements of one plan; bytes are None for PyTorch, which counts none of them.

    Arguments:
    - `plan`: its name, such as "keep_all".
    - `seconds`: of a step, an array of rounds.
    - `process`: peak memory of the process minus memory after the imports, bytes.
    - `loss`: of the first step.
    - `stored`, `paged`, `peak`: activations between the passes, those moved out of the device, and the peak, bytes.
    - `planned`, `allocated`: all device memory, bytes.
    - `predicted`: seconds of a step by launch times, of which the share `measured_launches` was measured.
    - `network`, `device`: names.
    - `noisy`: rounds in which other processes disturbed every attempt (default 0).
    """

    plan: str
    seconds: np.ndarray
    process: int
    loss: float
    stored: int | None = None
    peak: int | None = None
    planned: int | None = None
    allocated: int | None = None
    predicted: float | None = None
    measured_launches: float | None = None
    network: str = ""
    device: str = ""
    paged: int | None = None
    noisy: int = 0

    @property
    def headline(self) -> str:
        return f"'{self.plan}' of {self.network}: {self.median * 1e3:.1f} ms a step"

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def compare(
    network: str | Network = "mobilenet_v2", plans: Sequence[str] = (), examples: int = 1, rounds: int = 9,
    steps: int = 2, alpha: float = 1.0, device: str = "", attempts: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:  # fmt: skip
    """Train a network on random images with BatchNorm's batch statistics, by each plan in turn.

    Arguments:
    - `network`: a Network, or its name as of `find_network`; `alpha`: its width, if it is a name.
    - `plans`: names, see `named_plan` (default: all that can be made, PyTorch's where it is installed; `progress` is
      called with the reason for each that can't).
    - `examples`: of a step.
    - `rounds`, `steps`, `attempts`: blocks of each plan, steps of a block, and how often a noisy block is measured.
    - `device`: any part of an OpenCL device's name (default: the best one).

    Raises RunError where a plan in `plans` can't be made, or a process fails.
    """
    config = RoundsConfig(rounds, 0.0, steps, attempts)
    if rounds < 1:
        raise UsageError(f"Steps are measured in 1 or more rounds, not {rounds}.")
    _check(network, plans, examples, alpha)
    name = network.to_json() if isinstance(network, Network) else network
    cores = usable_cores()
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for plan in plans or [plan for plan in PLANS if plan not in TORCH or find_spec("torch")]:
            progress(f"preparing {plan}")
            target, arguments = (
                "edgelearn.experiments.memory.worker:PlanWorker",
                (plan, name, alpha, examples, device),
            )
            try:
                workers[plan] = stack.enter_context(Worker(target, arguments))
            except WorkerError as error:
                if plans or error.reason is None:
                    raise RunError(f"The plan '{plan}' can't be measured: {error.reason or error}") from None
                progress(f"left out: {plan}: {error.reason}")

        def stop(plan: str, error: WorkerError) -> None:
            raise RunError(f"The plan '{plan}' stopped: {error}") from None

        samplers = {plan: partial(_sample, worker, steps) for plan, worker in workers.items()}
        blocks = measure_in_turn(samplers, cores, config, lambda n: progress(f"round {n + 1} of {rounds}"), stop)
        return [
            Measured(
                plan, np.array([block.seconds for block in blocks[plan]]), **worker.call("facts"),
                noisy=sum(block.noisy for block in blocks[plan]),
            )
            for plan, worker in workers.items()
        ]  # fmt: skip


def _check(network: str | Network, plans: Sequence[str], examples: int, alpha: float) -> None:
    """Raise what would fail in the processes before any is started."""
    found = find_network(network, alpha).network
    if len(found.output.shape) != 1 or len(found.inputs) > 1:
        raise PlanError(
            f"Steps are timed on one input and class numbers, but '{found.name}' gives {found.output.shape}."
        )
    if examples < 1:
        raise UsageError(f"A step takes 1 or more examples, not {examples}.")
    for plan in plans:
        if is_reference(plan):
            find_policy(plan)
            continue
        if plan not in PLANS and not plan.endswith(tuple(COUNTS)):
            check_name(plan, PLANS, "plan", "a budget such as '6 MB stored'")
        if plan not in PLANS:
            budgets(plan)


def _sample(worker: Worker, steps: int) -> Sample:
    return Sample(**worker.call("measure", steps))
