"""edgelearn itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.compile.precision.named import named_precision
from edgelearn.ops import SGD, Compute, SoftmaxCrossEntropy
from edgelearn.runtime import Context, Session, choose_device
from edgelearn.runtime.feed import Examples

from . import engine_ops
from .ops import OpProblem
from .problem import Problem, make_network, make_problem
from .variant import FULL
from .workloads import INT8, Workload

RESIDENT, FED = "", "fed"  # the inputs stay on the device, or are copied there in every step
RANGE_STEPS = 3  # that change no weight and leave the ranges that int8 predictions use
PARTS = {"cached": 15, "train": 4}  # examples a micro-batch whose activations stay in a CPU's cache


class Engine:
    """Variants: inputs that stay on the device, as the peers' stay in memory, or `fed` to it in each step, as `fit`
    does; and where that gives the same update, also in micro-batches. Single ops are float32."""

    name = "edgelearn"

    def __init__(self, cores: int, device: str) -> None:
        self.context = Context(choose_device(device).device)

    def variants(self, workload: Workload) -> list[str]:
        if workload.op:
            return [RESIDENT] if workload.compute == FULL else []
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
    learns = workload.trains or workload.compute == INT8  # ranges of inference
    optimizer = SGD(workload.learning_rate, momentum=workload.momentum) if learns else None
    loss = SoftmaxCrossEntropy() if learns else None
    integers = workload.compute == INT8
    return Request(
        make_network(workload), workload.batch, micro_batch, optimizer, workload.batchnorm, loss=loss,
        precision=named_precision(INT8) if integers else Precision(),
        compute=Compute() if integers else Compute(workload.compute),
    )  # fmt: skip


def _step(session: Session, workload: Workload, problem: Problem, resident: bool) -> Callable[[], Any]:
    micro = session.plan.request.micro_batch
    starts = range(0, workload.batch, micro)
    inputs: list[Examples | None] = [session.pack(problem.inputs[i : i + micro]) for i in starts]
    labels = [problem.labels[i : i + micro].astype(np.int32) for i in starts]

    numbers = itertools.count(1)

    def train(rate: float) -> float:
        return session.train(zip(inputs, labels, strict=True), workload.batch, rate, next(numbers))[0]

    if workload.compute == INT8 and not workload.trains:
        for _ in range(RANGE_STEPS):
            train(0.0)

    def step() -> float | np.ndarray:
        trains = workload.trains
        result = train(workload.learning_rate) if trains else session.predict(inputs[0], workload.batch)
        if resident:
            inputs[0] = None  # from now on
        return result

    return step
