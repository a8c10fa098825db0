"""PyTorch on the processor, as strong as it gets in fp32 without changing the arithmetic.

Stride-2 convolutions with padding "same" pad below and to the right; PyTorch pads alike on all sides, which at
even sizes comes to above and to the left. So the network is run on mirrored pictures with mirrored kernels: the same
numbers, without the extra padding pass that would slow PyTorch down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from edgelearn.lab.bench.ops import OpProblem
from edgelearn.lab.bench.problem import EPSILON, MOVING_AVERAGE, ConvBatchNorm, Problem, make_problem
from edgelearn.lab.bench.workloads import Workload

from . import torch_ops
from .torch_inference import inference


class TorchPeer:
    """Variants: `eager` is NCHW; all others keep pictures channels-last. `matmul` is for the head alone.

    Left out, since on two cores they were never faster than what is there: torch.compile with max_autotune or with
    cpp_wrapper, and threads bound to cores by OMP_PROC_BIND.
    """

    name = "torch"

    def __init__(self, cores: int, device: str) -> None:
        torch.set_num_threads(cores)

    def variants(self, workload: Workload) -> list[str]:
        if workload.kind == "cached":
            return ["eager", "channels_last", "matmul", "compile"]
        pictures = workload.op is None or len(workload.op.shape) == 3
        found = ["eager", "channels_last", "compile"] if pictures else ["eager", "compile"]
        return found if workload.trains else [*found, "jit"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return torch_ops.prepare(problem, workload.trains, variant)
        flat = workload.kind == "cached" and variant in ("matmul", "compile")
        net = PixelHead(problem) if flat else Network(problem, fold=not workload.trains)
        inputs = torch.from_numpy(problem.inputs)
        if not flat:
            inputs = inputs.flip((1, 2)).permute(0, 3, 1, 2)
            layout = torch.contiguous_format if variant == "eager" else torch.channels_last
            net, inputs = net.to(memory_format=layout), inputs.contiguous(memory_format=layout)
        if not workload.trains:
            return _forward(net.eval(), variant, inputs)
        net.train(workload.batch_statistics)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(workload.trains_batchnorm)
        labels = torch.from_numpy(problem.labels)
        return _training(net, variant, inputs, labels, workload)


def _convolution(layer: ConvBatchNorm, kernel: np.ndarray) -> nn.Conv2d:
    """The convolution of `layer` on mirrored pictures, with `kernel` in place of its own."""
    size, channels = kernel.shape[0], kernel.shape[-1]
    weight = kernel[..., None, :] if layer.depthwise else kernel
    mirrored = np.ascontiguousarray(weight[::-1, ::-1].transpose(3, 2, 0, 1))
    module = nn.Conv2d(
        channels if layer.depthwise else kernel.shape[2],
        channels,
        size,
        layer.stride,
        size // 2,
        groups=channels if layer.depthwise else 1,
        bias=False,
    )
    module.weight = nn.Parameter(torch.from_numpy(mirrored))
    return module


def _batchnorm(layer: ConvBatchNorm) -> nn.BatchNorm2d:
    module = nn.BatchNorm2d(len(layer.gamma), eps=EPSILON, momentum=1 - MOVING_AVERAGE)
    pairs = zip(
        (module.weight, module.bias, module.running_mean, module.running_var),
        (layer.gamma, layer.beta, layer.mean, layer.variance),
        strict=True,
    )
    with torch.no_grad():
        for tensor, value in pairs:
            tensor.copy_(torch.from_numpy(value))
    return module


def _dense(problem: Problem) -> nn.Linear:
    module = nn.Linear(*problem.dense_kernel.shape)
    module.weight = nn.Parameter(torch.from_numpy(np.ascontiguousarray(problem.dense_kernel.T)))
    module.bias = nn.Parameter(torch.from_numpy(problem.dense_bias.copy()))
    return module


class Network(nn.Module):
    """The layers of a problem; `fold` puts each BatchNorm into the convolution before it."""

    def __init__(self, problem: Problem, fold: bool) -> None:
        super().__init__()
        self.features = nn.Sequential()
        for layer in problem.layers:
            if fold:
                kernel, bias = layer.folded()
                convolution = _convolution(layer, kernel)
                convolution.bias = nn.Parameter(torch.from_numpy(bias))
                self.features.append(convolution)
            else:
                self.features.extend((_convolution(layer, layer.kernel), _batchnorm(layer)))
            self.features.append(nn.ReLU6(inplace=True))
        self.dense = _dense(problem)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(batch, channels, height, width) to (batch, classes)."""
        return self.dense(self.features(inputs).mean((2, 3)))


class PixelHead(nn.Module):
    """The head with its 1x1 convolution as a matrix product over pixels."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        (layer,) = problem.layers
        scale = layer.gamma / np.sqrt(layer.variance + np.float32(EPSILON))
        self.kernel = nn.Parameter(torch.from_numpy(layer.kernel[0, 0].copy()))
        self.register_buffer("scale", torch.from_numpy(scale))
        self.register_buffer("shift", torch.from_numpy(layer.beta - layer.mean * scale))
        self.dense = _dense(problem)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(batch, height, width, channels) to (batch, classes)."""
        pixels = inputs.flatten(1, 2)
        features = F.relu6((pixels @ self.kernel) * self.scale + self.shift)
        return self.dense(features.mean(1))


def _forward(net: nn.Module, variant: str, inputs: torch.Tensor) -> Callable[[], np.ndarray]:
    infer = inference(net, inputs, variant)
    return lambda: infer().numpy()


def _training(
    net: nn.Module, variant: str, inputs: torch.Tensor, labels: torch.Tensor, workload: Workload
) -> Callable[[], float]:
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, workload.learning_rate, workload.momentum, fused=True)
    if variant == "compile":
        net = torch.compile(net)
    parts = list(zip(inputs.split(workload.micro_batch), labels.split(workload.micro_batch), strict=True))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for pictures, classes in parts:
            loss = F.cross_entropy(net(pictures), classes) / len(parts)
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return step
