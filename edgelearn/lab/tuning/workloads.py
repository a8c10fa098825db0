"""Work for tuning: whole steps of plans, so that caches and clocks are as in real use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from edgelearn.compile import Plan, Request
from edgelearn.errors import EdgelearnError
from edgelearn.graph import split_frozen
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.workloads import Workload
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD

CPU = ("train:1", "train:16", "cached:163", "cached:163/15", "flowers-sample", "forward:1", "forward:16", "train_bn:1")
INTEGERS = ("resnet18/train_bn:1", "resnet18/train_bn:8", "train_bn:1", "mobilenet_v2/train_bn:1")
UNITS_GPU = ("resnet18/train_bn:32", "train_bn:32", "mobilenet_v2/train_bn:32")
GPU = ("train:1", "train:32", "cached:163", "forward:1", "forward:32")


def defaults(gpu: bool, compute: str) -> tuple[str, ...]:
    """The works that are tuned if none is named."""
    if compute == "fp32":
        return GPU if gpu else CPU
    return UNITS_GPU if gpu else INTEGERS


@dataclass(frozen=True)
class Work:
    """A training step of one micro-batch, or a prediction where nothing is trained.

    Arguments:
    - `name`: of the work, for tables.
    - `request`: its plan is made from this.
    """

    name: str
    request: Request

    @property
    def trains(self) -> bool:
        return self.request.optimizer is not None

    @classmethod
    def parse(cls, text: str, compute: str = "fp32") -> Work:
        """A whole network's workload of `edgelearn bench`, in micro-batches as in "cached:163/15" if need be; or
        "flowers-sample", the training of the embedded sample's network, in float32. `compute` is the type of others;
        see `Workload`. Raises EdgelearnError for any other."""
        if text == "flowers-sample":
            network = mobilenet_v1((96, 96, 3), alpha=0.25, classes=5).freeze().unfreeze("conv_pw_13", "dense")
            split = split_frozen(network)
            assert split is not None
            return cls(text, Request(split.suffix, 50, 50, SGD(momentum=0.9)))
        parts = re.fullmatch(r"(?P<workload>.+:[^/:]*)/(?P<micro>[^/:a-z]*)", text)
        workload = Workload.parse(parts["workload"] if parts else text, compute=compute)
        micro = parts["micro"] if parts else ""
        if parts and not (micro.isascii() and micro.isdigit() and 0 < int(micro) <= workload.batch):
            raise EdgelearnError(f"Workload '{text}': behind the slash comes the micro-batch, 1 to {workload.batch}.")
        micro_batch = int(micro) if parts else workload.micro_batch
        name = text if compute == "fp32" else f"{text}, {compute}"
        return cls(name, replace(make_request(workload, micro_batch), batch_size=micro_batch))


def works_of(plans: Iterable[Plan]) -> list[Work]:
    """A work for each size of micro-batch of each plan."""
    works = []
    for plan in plans:
        r = plan.request
        verb = "train" if r.optimizer else "predict"
        for n in dict.fromkeys(plan.micro_batches(r.batch_size)):
            works.append(Work(f"{verb} {r.network.name}:{n}", replace(r, batch_size=n, micro_batch=n)))
    return works
