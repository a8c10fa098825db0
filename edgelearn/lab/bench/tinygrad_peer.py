"""tinygrad on the OpenCL device that it takes: the first one of the first platform."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.device import Device as ComputeDevice
from edgelearn.errors import EdgelearnError
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.ops import Loss, Optimizer
from edgelearn.runtime import choose_device, list_devices

from .workloads import FULL, NAME, OpProblem, Workload, digest, make_problem

if TYPE_CHECKING:
    from tinygrad import Tensor

    from edgelearn.interop.to_tinygrad import TinygradNetwork


class TinygradPeer:
    """One variant, `jit`: kernels generated for the step and replayed."""

    name = "tinygrad"

    def __init__(self, cores: int, device: str) -> None:
        # tinygrad reads its settings from the environment when imported; the worker's core binding limits its threads.
        os.environ["DEV"] = "CL"
        _point_at_opencl()
        from tinygrad import Device

        self.device = Device["CL"]
        _check(choose_device(device).device, self.device.device_name, self.device.driver_version)

    def variants(self, workload: Workload) -> list[str]:
        return ["jit"] if workload.compute == FULL else []

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        from tinygrad import TinyJit

        from edgelearn.interop.to_tinygrad import TinygradNetwork, encode

        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return _op_step(problem, workload.trains, self.device.synchronize)
        inputs = encode(problem.inputs)
        if not workload.trains:
            net = TinygradNetwork(*fold_batchnorm(problem.network, problem.weights), logits=True)
            logits = TinyJit(lambda x: net(x).realize())
            return lambda: logits(inputs).numpy()
        net = TinygradNetwork(problem.network, problem.weights, workload.batchnorm, logits=True)
        return _training(net, inputs, encode(problem.labels.astype(np.int32)), workload)


def _check(asked: ComputeDevice, name: str, driver: str) -> None:
    if (" ".join(name.split()), driver.strip()) != (asked.name, asked.driver):
        raise EdgelearnError(
            f"tinygrad computes on {name} (driver {driver}), the first device of the first OpenCL platform, and not on "
            f"{asked.id}. Point OCL_ICD_VENDORS to a folder with the driver of that device alone."
        )


def _point_at_opencl() -> None:
    """Point tinygrad at the OpenCL loader inside the pyopencl package, if there is one.

    tinygrad looks for a loader in the system's folders only, unless OPENCL_PATH is set. The loader in that package
    finds its driver only once pyopencl has been imported. Listing the devices imports it, and works around known
    driver faults, so that tinygrad gets the devices in the same state as the engine.
    """
    import pyopencl

    list_devices()
    folder = Path(str(pyopencl.__file__)).parent
    loaders = sorted([*folder.glob(".libs/libOpenCL*"), *folder.with_name("pyopencl.libs").glob("libOpenCL*")])
    if loaders:
        os.environ.setdefault("OPENCL_PATH", str(loaders[0]))


def _training(net: TinygradNetwork, inputs: Tensor, labels: Tensor, workload: Workload) -> Callable[[], float]:
    from tinygrad import Context, Tensor, TinyJit

    weights = list(net.trained.values())
    statistics = net.statistics if workload.batchnorm == "batch" else []
    velocities = [Tensor.zeros(*w.shape).contiguous().realize() for w in weights] if workload.momentum else []
    size = workload.micro_batch
    parts = [
        (inputs[i : i + size].contiguous().realize(), labels[i : i + size].contiguous().realize())
        for i in range(0, workload.batch, size)
    ]

    def loss_and_gradients(examples: Tensor, classes: Tensor) -> tuple[Tensor, list[Tensor]]:
        with Context(TRAINING=1):
            loss = net(examples).sparse_categorical_crossentropy(classes) / len(parts)
        return loss, loss.gradient(*weights)

    def updates(gradients: list[Tensor]) -> list[Tensor]:
        changed = []
        for velocity, gradient in zip(velocities, gradients, strict=False):
            changed.append(velocity.assign(velocity * workload.momentum + gradient))
        for weight, direction in zip(weights, velocities or gradients, strict=True):
            changed.append(weight.assign(weight - workload.learning_rate * direction))
        return changed

    if len(parts) == 1:

        @TinyJit
        def update(examples: Tensor, classes: Tensor) -> Tensor:
            loss, gradients = loss_and_gradients(examples, classes)
            Tensor.realize(loss, *updates(gradients), *statistics)
            return loss

        return lambda: update(*parts[0]).item()

    sums = [Tensor.zeros(*weight.shape).contiguous().realize() for weight in weights]

    @TinyJit
    def add(examples: Tensor, classes: Tensor) -> Tensor:
        loss, gradients = loss_and_gradients(examples, classes)
        Tensor.realize(loss, *(total.assign(total + gradient) for total, gradient in zip(sums, gradients, strict=True)))
        return loss

    @TinyJit
    def apply() -> None:
        Tensor.realize(*updates(sums))
        Tensor.realize(*(total.assign(total.zeros_like()) for total in sums))

    def step() -> float:
        loss = sum(add(examples, classes).item() for examples, classes in parts)
        apply()
        return loss

    return step


def _op_step(problem: OpProblem, trains: bool, synchronize: Callable[[], None]) -> Callable[[], Any]:
    """The step of a single op, its kernels generated once and replayed; `synchronize` waits for the device."""
    from tinygrad import Context, Tensor, TinyJit

    from edgelearn.interop.to_tinygrad import TinygradNetwork, decode, encode

    spec, x, dy = problem.spec, encode(problem.x), encode(problem.dy)
    labels = encode(problem.labels.astype(np.int32))
    net = (
        None
        if isinstance(spec.op, Loss | Optimizer)
        else TinygradNetwork(spec.network(), problem.named_weights, "batch")
    )
    names = [f"{NAME}/{role}" for role in problem.trained]

    def compute(x: Tensor, dy: Tensor) -> list[Tensor]:
        if isinstance(spec.op, Optimizer):
            return [x.assign(x - problem.learning_rate * dy).realize()]
        y = net(x) if net else x.sparse_categorical_crossentropy(labels)
        if not trains:
            return [y.realize()]
        weights = [net.tensors[name] for name in names] if net else []
        sources = weights if spec.reads_pictures else [x, *weights]
        results = [y, *y.gradient(*sources, gradient=dy if net else None)]
        Tensor.realize(*results)
        return results

    jitted = TinyJit(compute)

    def step() -> Callable[[], list[float]]:
        with Context(TRAINING=1):
            results = jitted(x, dy)
        synchronize()
        first = len(results) - len(names) if trains else len(results)
        gradients = zip(names, results[first:], strict=False)
        return lambda: digest(*map(decode, results[:first]), *(net.decode_weight(n, g) for n, g in gradients if net))

    return step
