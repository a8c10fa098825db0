"""edgelearn itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.compile import Request, make_plan
from edgelearn.ops import SGD, SoftmaxCrossEntropy
from edgelearn.runtime import Context, Session, choose_device
from edgelearn.runtime.feed import Examples

from . import engine_ops
from .ops import OpProblem
from .problem import Problem, make_network, make_problem
from .workloads import Workload

RESIDENT, FED = "", "fed"  # the inputs stay on the device, or are copied there in every step
PARTS = {"cached": 15, "train": 4}  # examples a micro-batch whose activations stay in a CPU's cache


class Engine:
    """Variants: inputs that stay on the device, as the peers' stay in memory, or `fed` to it in each step, as `fit`
    does; and where that gives the same update, also in micro-batches."""

    name = "edgelearn"

    def __init__(self, cores: int, device: str) -> None:
        self.context = Context(choose_device(device).device)

    def variants(self, workload: Workload) -> list[str]:
        if workload.op:
            return [RESIDENT]
        if workload.micro_batch < workload.batch:
            return [FED]
        part = PARTS.get(workload.kind, workload.batch)
        return [RESIDENT, FED] + ([_in_parts(part)] if part < workload.batch else [])

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return engine_ops.prepare(problem, workload.trains, self.context)
        part = PARTS.get(workload.kind)
        micro = part if part and variant == _in_parts(part) else workload.micro_batch
        session = Session(make_plan(make_request(workload, micro), self.context.device), self.context)
        session.load(problem.weights)
        return _step(session, workload, problem, variant == RESIDENT)


def _in_parts(examples: int) -> str:
    return f"fed, {examples} at a time"


def make_request(workload: Workload, micro_batch: int) -> Request:
    """The request for a plan of this workload. Raises as `make_network`."""
    optimizer = SGD(workload.learning_rate, momentum=workload.momentum) if workload.trains else None
    loss = SoftmaxCrossEntropy() if workload.trains else None
    return Request(make_network(workload), workload.batch, micro_batch, optimizer, workload.batchnorm, loss=loss)


def _step(session: Session, workload: Workload, problem: Problem, resident: bool) -> Callable[[], Any]:
    micro = session.plan.request.micro_batch
    starts = range(0, workload.batch, micro)
    inputs: list[Examples | None] = [session.pack(problem.inputs[i : i + micro]) for i in starts]
    labels = [problem.labels[i : i + micro].astype(np.int32) for i in starts]

    def step() -> float | np.ndarray:
        if workload.trains:
            parts = zip(inputs, labels, strict=True)
            result = session.train(parts, workload.batch, workload.learning_rate, 1)[0]
        else:
            result = session.predict(inputs[0], workload.batch)
        if resident:
            inputs[0] = None  # from now on
        return result

    return step
