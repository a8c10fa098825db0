"""Ops by themselves in PyTorch, on mirrored pictures as in torch_peer.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from edgelearn.lab.bench.ops import OpProblem, digest
from edgelearn.lab.bench.problem import EPSILON

from .torch_inference import inference

Step = Callable[[], Callable[[], list[float]]]


def prepare(problem: OpProblem, trains: bool, variant: str) -> Step:
    """The step of an op. Variants as of the networks."""
    if problem.spec.kind == "update":
        return _update(problem, variant)
    layout = torch.contiguous_format if variant == "eager" else torch.channels_last
    net, inputs = _module(problem), _forth(problem.x)
    if inputs.ndim == 4:
        net, inputs = net.to(memory_format=layout), inputs.contiguous(memory_format=layout)
    return _training(net, inputs, problem, variant) if trains else _forward(net.eval(), inputs, variant)


def _forward(net: nn.Module, inputs: torch.Tensor, variant: str) -> Step:
    infer = inference(net, inputs, variant)

    def step() -> Callable[[], list[float]]:
        y = infer()
        return lambda: digest(_back(y))

    return step


def _training(net: nn.Module, inputs: torch.Tensor, problem: OpProblem, variant: str) -> Step:
    net.train()
    inputs_too = not problem.spec.reads_pictures
    wanted = [*([inputs.requires_grad_()] if inputs_too else []), *net.parameters()]
    if variant == "compile":
        net = torch.compile(net)
    if problem.spec.kind == "loss":
        dy = torch.ones(())
    else:
        layout = torch.channels_last if problem.dy.ndim == 4 and variant != "eager" else torch.contiguous_format
        dy = _forth(problem.dy).contiguous(memory_format=layout)

    def step() -> Callable[[], list[float]]:
        y = net(inputs)
        gradients = list(torch.autograd.grad(y, wanted, dy))

        def results() -> list[float]:
            dx = [_back(gradients[0])] if inputs_too else []
            return digest(_back(y), *dx, *(_weight_back(g, problem) for g in gradients[len(dx) :]))

        return results

    return step


def _update(problem: OpProblem, variant: str) -> Step:
    parameter = nn.Parameter(torch.from_numpy(problem.x))
    parameter.grad = torch.from_numpy(problem.dy)
    optimizer = torch.optim.SGD([parameter], problem.learning_rate, fused=variant != "compile")
    update = torch.compile(optimizer.step) if variant == "compile" else optimizer.step

    def step() -> Callable[[], list[float]]:
        update()
        return lambda: digest(parameter.detach().numpy())

    return step


class _Mean(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean((2, 3))


class _Loss(nn.Module):
    def __init__(self, labels: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("labels", torch.from_numpy(labels))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(inputs, self.labels)


def _module(problem: OpProblem) -> nn.Module:
    spec, weights = problem.spec, {name: torch.from_numpy(array) for name, array in problem.weights.items()}
    channels = spec.shape[-1]
    if spec.kind == "pool":
        return _Mean()
    if spec.kind == "loss":
        return _Loss(problem.labels)
    if spec.kind == "batchnorm":
        module = nn.BatchNorm2d(channels, EPSILON, track_running_stats=False)
        module.weight, module.bias = nn.Parameter(weights["gamma"]), nn.Parameter(weights["beta"])
    elif spec.kind == "dense":
        module = nn.Linear(channels, spec.filters)
        module.weight, module.bias = nn.Parameter(weights["kernel"].T.contiguous()), nn.Parameter(weights["bias"])
    else:
        depthwise = spec.kind == "depthwise"
        filters, groups = (channels, channels) if depthwise else (spec.filters, 1)
        module = nn.Conv2d(channels, filters, spec.size, spec.stride, spec.size // 2, groups=groups, bias=False)
        kernel = weights["kernel"].flip((0, 1)).permute(*_order(depthwise))
        module.weight = nn.Parameter(kernel.contiguous())
    return module


def _order(depthwise: bool) -> tuple[int, ...]:
    """PyTorch's (out, in, y, x) from Keras's (y, x, in, out), for a depthwise kernel from (y, x, channels, 1)."""
    return (2, 3, 0, 1) if depthwise else (3, 2, 0, 1)


def _forth(array: np.ndarray) -> torch.Tensor:
    """Keras's layout to PyTorch's; pictures mirrored."""
    tensor = torch.from_numpy(array)
    return tensor.flip((1, 2)).permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor


def _back(tensor: torch.Tensor) -> np.ndarray:
    """The way back."""
    tensor = tensor.detach()
    return (tensor.permute(0, 2, 3, 1).flip((1, 2)) if tensor.ndim == 4 else tensor).numpy()


def _weight_back(gradient: torch.Tensor, problem: OpProblem) -> np.ndarray:
    if gradient.ndim == 4:
        order = (2, 3, 0, 1) if problem.spec.kind == "depthwise" else (2, 3, 1, 0)
        return gradient.permute(*order).flip((0, 1)).numpy()
    return gradient.T.numpy() if gradient.ndim == 2 else gradient.numpy()
