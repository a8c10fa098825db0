"""edgelearn itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgelearn.compile import Request, make_plan
from edgelearn.errors import PlanError
from edgelearn.graph import Network, split_frozen
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, SoftmaxCrossEntropy
from edgelearn.runtime import Context, Session, choose_device

from . import engine_ops
from .ops import OpProblem
from .problem import Problem, make_problem
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
        request = make_request(workload, micro)
        session = Session(make_plan(request, self.context.device), self.context)
        session.load(_weights(problem, request.network))
        return _step(session, workload, problem, variant == RESIDENT)


def _in_parts(examples: int) -> str:
    return f"fed, {examples} at a time"


def make_request(workload: Workload, micro_batch: int) -> Request:
    """What a plan of this workload is asked for. Raises PlanError for an op by itself, which has none."""
    if workload.op:
        raise PlanError(f"Workload {workload.name} is an op by itself, without a plan: choose one of a whole network.")
    optimizer = SGD(workload.learning_rate, momentum=workload.momentum) if workload.trains else None
    statistics = "batch" if workload.batch_statistics else "moving"
    loss = SoftmaxCrossEntropy() if workload.trains else None
    return Request(_network(workload), workload.batch, micro_batch, optimizer, statistics, loss=loss)


def _step(session: Session, workload: Workload, problem: Problem, resident: bool) -> Callable[[], Any]:
    micro = session.plan.request.micro_batch
    starts = range(0, workload.batch, micro)
    inputs: list[np.ndarray | None] = [session.pack(problem.inputs[i : i + micro]) for i in starts]
    labels = [problem.labels[i : i + micro].astype(np.int32) for i in starts]

    def step() -> float | np.ndarray:
        if workload.trains:
            parts = zip(inputs, labels, strict=True)
            found = session.train(parts, workload.batch, workload.learning_rate, 1)[0]
        else:
            found = session.predict(inputs[0], workload.batch)
        if resident:
            inputs[0] = None  # from now on
        return found

    return step


def _network(workload: Workload) -> Network:
    """MobileNet V1, all of it or what lies above its frozen layers; without the softmax, as the peers give logits."""
    network = mobilenet_v1(classes=5 if workload.kind == "cached" else 1000, softmax=False)
    if workload.kind != "cached":
        return network
    return split_frozen(network.freeze().unfreeze("conv_pw_13", "dense")).suffix


def _weights(problem: Problem, network: Network) -> dict[str, np.ndarray]:
    found = {"dense/kernel": problem.dense_kernel, "dense/bias": problem.dense_bias}
    for layer in problem.layers:
        found[f"{layer.name}/kernel"] = layer.kernel[..., None] if layer.depthwise else layer.kernel
        norm = f"{layer.name}_bn"
        found |= {f"{norm}/gamma": layer.gamma, f"{norm}/beta": layer.beta}
        found |= {f"{norm}/moving_mean": layer.mean, f"{norm}/moving_variance": layer.variance}
    return {name: found[name] for name in network.parameters}
