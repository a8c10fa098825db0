"""edgelearn itself, on the OpenCL device that it would choose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgelearn.bench.problem import Problem, make_problem
from edgelearn.bench.workloads import Workload
from edgelearn.device import Context, choose_device
from edgelearn.graph import Network, Request, Session, make_plan, split_frozen
from edgelearn.graph.lower import input_block
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, pack

PARTS = {"whole": 0, "15 at a time": 15}  # micro-batches of the head


class Engine:
    """Variants: for the head alone, the mini-batch whole or in micro-batches of 15; else there is one."""

    name = "edgelearn"

    def __init__(self, cores: int) -> None:
        self.context = Context(choose_device().device)

    def variants(self, workload: Workload) -> list[str]:
        return list(PARTS) if workload.kind == "cached" else [self.context.device.kind]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], float | np.ndarray]:
        problem = make_problem(workload)
        request = make_request(workload, PARTS.get(variant) or workload.micro_batch)
        network, micro = request.network, request.micro_batch
        session = Session(make_plan(request, self.context.device), self.context)
        session.load(_weights(problem, network))
        block = input_block(network)
        starts = range(0, workload.batch, micro)
        inputs = [pack(problem.inputs[i : i + micro], block) for i in starts]
        if not workload.trains:
            return lambda: session.predict(inputs[0], workload.batch)
        labels = [problem.labels[i : i + micro].astype(np.int32) for i in starts]
        parts = list(zip(inputs, labels, strict=True))
        return lambda: session.train(parts, workload.batch, workload.learning_rate, 1)[0]


def make_request(workload: Workload, micro_batch: int) -> Request:
    """What a plan of this workload is asked for."""
    optimizer = SGD(workload.learning_rate, momentum=workload.momentum) if workload.trains else None
    statistics = "batch" if workload.batch_statistics else "kept"
    return Request(_network(workload), workload.batch, micro_batch, optimizer, statistics)


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
