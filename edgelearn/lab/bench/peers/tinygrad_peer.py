"""tinygrad on the OpenCL device that it takes: the first one of the first platform."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.device import Device as ComputeDevice
from edgelearn.errors import EdgelearnError
from edgelearn.lab.bench.ops import OpProblem
from edgelearn.lab.bench.problem import EPSILON, MOVING_AVERAGE, ConvBatchNorm, Problem, make_problem
from edgelearn.lab.bench.workloads import Workload
from edgelearn.runtime import choose_device, list_devices

from . import tinygrad_ops

if TYPE_CHECKING:
    from tinygrad import Tensor
    from tinygrad.nn import BatchNorm


class TinygradPeer:
    """One variant, `jit`: kernels generated for the step and replayed."""

    name = "tinygrad"

    def __init__(self, cores: int, device: str) -> None:
        # tinygrad is told through the environment, before its import; the worker's core binding limits the threads.
        os.environ["DEV"] = "CL"
        _point_at_opencl()
        from tinygrad import Device

        self.device = Device["CL"]
        _check(choose_device(device).device, self.device.device_name, self.device.driver_version)

    def variants(self, workload: Workload) -> list[str]:
        return ["jit"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        from tinygrad import Tensor, TinyJit

        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return tinygrad_ops.prepare(problem, workload.trains, self.device.synchronize)
        inputs = Tensor(np.ascontiguousarray(problem.inputs.transpose(0, 3, 1, 2))).realize()
        if not workload.trains:
            net = _Network(problem, fold=True)
            logits = TinyJit(lambda x: net(x).realize())
            return lambda: logits(inputs).numpy()
        labels = Tensor(problem.labels.astype(np.int32)).realize()
        net = _Network(problem, fold=False, batch_statistics=workload.batch_statistics)
        return _training(net, inputs, labels, workload)


def _check(asked: ComputeDevice, name: str, driver: str) -> None:
    if (" ".join(name.split()), driver.strip()) != (asked.name, asked.driver):
        raise EdgelearnError(
            f"tinygrad computes on {name} (driver {driver}), the first device of the first OpenCL platform, and not on "
            f"{asked.id}. Point OCL_ICD_VENDORS to a folder with the driver of that device alone."
        )


def _point_at_opencl() -> None:
    """Give tinygrad the OpenCL loader that comes inside the pyopencl package, if there is one.

    It looks for a loader in the system's folders only, unless OPENCL_PATH says otherwise. The loader in that package
    finds its driver only once pyopencl has been imported; listing the devices does that, and mends what is known to
    be wrong with them, so that tinygrad gets the devices in the state in which the engine gets them.
    """
    import pyopencl

    list_devices()
    folder = Path(pyopencl.__file__).parent
    loaders = sorted([*folder.glob(".libs/libOpenCL*"), *folder.with_name("pyopencl.libs").glob("libOpenCL*")])
    if loaders:
        os.environ.setdefault("OPENCL_PATH", str(loaders[0]))


class _Network:
    """The layers of a problem; `fold` puts each BatchNorm into the convolution before it."""

    def __init__(self, problem: Problem, fold: bool, batch_statistics: bool = False) -> None:
        from tinygrad import Tensor

        self.batch_statistics = batch_statistics
        self.layers: list[tuple[ConvBatchNorm, Tensor, Tensor | BatchNorm]] = []
        for layer in problem.layers:
            kernel, bias = layer.folded() if fold else (layer.kernel, None)
            kernel = (kernel[..., None, :] if layer.depthwise else kernel).transpose(3, 2, 0, 1)
            after = Tensor(bias).realize() if fold else _batchnorm(layer)
            self.layers.append((layer, Tensor(np.ascontiguousarray(kernel)).realize(), after))
        self.dense = [Tensor(problem.dense_kernel).realize(), Tensor(problem.dense_bias).realize()]

    def trained(self, batchnorm: bool) -> list[Tensor]:
        tensors = [kernel for _, kernel, _ in self.layers] + self.dense
        if batchnorm:
            tensors += [tensor for _, _, after in self.layers for tensor in (after.weight, after.bias)]
        return tensors

    def statistics(self) -> list[Tensor]:
        return [tensor for _, _, after in self.layers for tensor in (after.running_mean, after.running_var)]

    def __call__(self, tensor: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, classes)."""
        from tinygrad import Tensor

        for layer, kernel, after in self.layers:
            groups = kernel.shape[0] if layer.depthwise else 1
            edge = kernel.shape[-1] // 2
            padding = (0, edge, 0, edge) if layer.stride == 2 else edge  # "same": below and to the right
            folded = isinstance(after, Tensor)
            tensor = tensor.conv2d(kernel, after if folded else None, groups, layer.stride, padding=padding)
            if not folded:
                tensor = self._normalize(tensor, after)
            tensor = tensor.relu6()
        return tensor.mean((2, 3)) @ self.dense[0] + self.dense[1]

    def _normalize(self, tensor: Tensor, batchnorm: BatchNorm) -> Tensor:
        if self.batch_statistics:
            return batchnorm(tensor)
        scale = (batchnorm.running_var + EPSILON).rsqrt()
        return tensor.batchnorm(batchnorm.weight, batchnorm.bias, batchnorm.running_mean, scale)


def _batchnorm(layer: ConvBatchNorm) -> BatchNorm:
    from tinygrad import nn

    batchnorm = nn.BatchNorm2d(len(layer.gamma), EPSILON, momentum=1 - MOVING_AVERAGE)
    pairs = {
        "weight": layer.gamma,
        "bias": layer.beta,
        "running_mean": layer.mean,
        "running_var": layer.variance,
    }
    for name, value in pairs.items():
        getattr(batchnorm, name).assign(value).realize()
    return batchnorm


def _training(net: _Network, inputs: Tensor, labels: Tensor, workload: Workload) -> Callable[[], float]:
    from tinygrad import Context, Tensor, TinyJit

    weights = net.trained(workload.trains_batchnorm)
    statistics = net.statistics() if workload.batch_statistics else []
    velocities = [Tensor.zeros(*w.shape).contiguous().realize() for w in weights] if workload.momentum else []
    size = workload.micro_batch
    parts = [
        (inputs[i : i + size].contiguous().realize(), labels[i : i + size].contiguous().realize())
        for i in range(0, workload.batch, size)
    ]

    def loss_and_gradients(pictures: Tensor, classes: Tensor) -> tuple[Tensor, list[Tensor]]:
        with Context(TRAINING=1):
            loss = net(pictures).sparse_categorical_crossentropy(classes) / len(parts)
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
        def update(pictures: Tensor, classes: Tensor) -> Tensor:
            loss, gradients = loss_and_gradients(pictures, classes)
            Tensor.realize(loss, *updates(gradients), *statistics)
            return loss

        return lambda: update(*parts[0]).item()

    sums = [Tensor.zeros(*weight.shape).contiguous().realize() for weight in weights]

    @TinyJit
    def add(pictures: Tensor, classes: Tensor) -> Tensor:
        loss, gradients = loss_and_gradients(pictures, classes)
        Tensor.realize(loss, *(total.assign(total + gradient) for total, gradient in zip(sums, gradients, strict=True)))
        return loss

    @TinyJit
    def apply() -> None:
        Tensor.realize(*updates(sums))
        Tensor.realize(*(total.assign(total.zeros_like()) for total in sums))

    def step() -> float:
        loss = sum(add(pictures, classes).item() for pictures, classes in parts)
        apply()
        return loss

    return step
