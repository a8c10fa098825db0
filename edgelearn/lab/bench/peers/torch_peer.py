"""PyTorch on the processor, as strong as it gets in float32 without changing the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from edgelearn.interop.fold import fold_batchnorm
from edgelearn.interop.to_torch import to_torch
from edgelearn.lab.bench.ops import NAME, OpProblem, digest
from edgelearn.lab.bench.problem import Problem, make_problem
from edgelearn.lab.bench.workloads import Workload
from edgelearn.ops import Loss, Optimizer

OpStep = Callable[[], Callable[[], list[float]]]


class TorchPeer:
    """Variants: `eager` is NCHW, all others keep images channels-last. `matmul` computes the 1x1 convolution of
    "cached" as a matrix product.

    Left out, since on two cores they were never faster than these: torch.compile with max_autotune or with cpp_wrapper,
    and threads bound to cores by OMP_PROC_BIND.
    """

    name = "torch"

    def __init__(self, cores: int, device: str) -> None:
        torch.set_num_threads(cores)

    def variants(self, workload: Workload) -> list[str]:
        if workload.kind == "cached":
            return ["eager", "channels_last", "matmul", "compile"]
        images = workload.op is None or len(workload.op.shape) == 3
        variants = ["eager", "channels_last", "compile"] if images else ["eager", "compile"]
        return variants if workload.trains else [*variants, "jit"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return _op_step(problem, workload.trains, variant)
        network, weights = problem.network, problem.weights
        if not workload.trains:
            network, weights = fold_batchnorm(network, weights)
        products = workload.kind == "cached" and variant in ("matmul", "compile")
        settings = {"logits": True, "mirrored": True, "matrix_products": products}
        net = to_torch(network, weights, batchnorm=workload.batchnorm, **settings)
        inputs = net.encode(problem.inputs)
        net, inputs = net.to(memory_format=_layout(variant, inputs)), _laid_out(inputs, variant)
        if workload.trains:
            return _training(net.train(), inputs, problem, workload, variant)
        infer = _inference(net.eval(), inputs, variant)
        return lambda: infer().numpy()


def _layout(variant: str, tensor: torch.Tensor) -> torch.memory_format:
    return torch.contiguous_format if variant == "eager" or tensor.ndim != 4 else torch.channels_last


def _laid_out(tensor: torch.Tensor, variant: str) -> torch.Tensor:
    return tensor.contiguous(memory_format=_layout(variant, tensor))


def _inference(net: nn.Module, inputs: torch.Tensor, variant: str) -> Callable[[], torch.Tensor]:
    """A function that runs `net`: traced and frozen for `jit`, compiled for `compile`, else as it is."""
    net.requires_grad_(False)
    run: Any = net
    with torch.no_grad():
        if variant == "jit":
            run = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, inputs)))
        elif variant == "compile":
            run = torch.compile(net, options={"freezing": True})

    def infer() -> torch.Tensor:
        # A compiled, frozen network is for no_grad; elsewhere inference_mode is the quicker one.
        with torch.no_grad() if variant == "compile" else torch.inference_mode():
            return run(inputs)

    return infer


def _training(
    net: nn.Module, inputs: torch.Tensor, problem: Problem, workload: Workload, variant: str
) -> Callable[[], float]:
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, workload.learning_rate, workload.momentum, fused=True)
    run: Any = torch.compile(net) if variant == "compile" else net
    labels = torch.from_numpy(problem.labels)
    parts = list(zip(inputs.split(workload.micro_batch), labels.split(workload.micro_batch), strict=True))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for examples, classes in parts:
            loss = F.cross_entropy(run(examples), classes) / len(parts)
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return step


class _Loss(nn.Module):
    def __init__(self, labels: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("labels", labels)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, self.labels)  # type: ignore[arg-type]


def _op_step(problem: OpProblem, trains: bool, variant: str) -> OpStep:
    """The step of a single op. Variants as of networks."""
    if isinstance(problem.spec.op, Optimizer):
        return _update(problem, variant)
    if isinstance(problem.spec.op, Loss):
        return _loss(problem, variant)
    net = to_torch(problem.spec.network(), problem.named_weights, batchnorm="batch", mirrored=True).train()
    inputs = _laid_out(net.encode(problem.x), variant)
    net = net.to(memory_format=_layout(variant, inputs))
    if not trains:
        infer = _inference(net, inputs, variant)

        def forward() -> Callable[[], list[float]]:
            y = infer()
            return lambda: digest(net.decode(y))

        return forward
    weights = [net.tensor(f"{NAME}/{role}") for role in problem.trained]
    sources = weights if problem.spec.reads_pictures else [inputs.requires_grad_(), *weights]
    dy = _laid_out(net.encode(problem.dy), variant)
    run: Any = torch.compile(net) if variant == "compile" else net

    def step() -> Callable[[], list[float]]:
        y = run(inputs)
        gradients = torch.autograd.grad(y, sources, dy)

        def results() -> list[float]:
            dx = gradients[: len(sources) - len(weights)]
            for weight, gradient in zip(weights, gradients[len(dx) :], strict=True):
                weight.grad = gradient
            found = net.gradients()
            return digest(net.decode(y), *map(net.decode, dx), *(found[f"{NAME}/{role}"] for role in problem.trained))

        return results

    return step


def _loss(problem: OpProblem, variant: str) -> OpStep:
    net = _Loss(torch.from_numpy(problem.labels))
    run: Any = torch.compile(net) if variant == "compile" else net
    inputs = torch.from_numpy(problem.x).requires_grad_()

    def step() -> Callable[[], list[float]]:
        loss = run(inputs)
        (dx,) = torch.autograd.grad(loss, [inputs])
        return lambda: digest(loss.detach().numpy(), dx.numpy())

    return step


def _update(problem: OpProblem, variant: str) -> OpStep:
    parameter = nn.Parameter(torch.from_numpy(problem.x))
    parameter.grad = torch.from_numpy(problem.dy)
    optimizer = torch.optim.SGD([parameter], problem.learning_rate, fused=variant != "compile")
    update = torch.compile(optimizer.step) if variant == "compile" else optimizer.step

    def step() -> Callable[[], list[float]]:
        update()
        return lambda: digest(parameter.detach().numpy())

    return step
