"""PyTorch, as strong as it gets in each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from edgelearn.interop.fold import fold_batchnorm
from edgelearn.interop.to_torch import to_torch
from edgelearn.lab.bench.contenders import on_nvidia
from edgelearn.lab.bench.ops import NAME, OpProblem, digest
from edgelearn.lab.bench.problem import make_problem
from edgelearn.lab.bench.variant import FULL
from edgelearn.lab.bench.workloads import INT8, Workload
from edgelearn.ops import Loss, Optimizer

from .torch_network import inference, training, use_tf32

OpStep = Callable[[], Callable[[], list[float]]]


class TorchPeer:
    """Variants: `eager` is NCHW, all others keep images channels-last. `matmul` computes the 1x1 convolution of
    "cached" as a matrix product; `graph` replays a CUDA graph. Halves are those of autocast, with a GradScaler in fp16.
    Computes on NVIDIA's GPU if that is the OpenCL device, else on the processor.

    Left out, since on two cores they were never faster than these: torch.compile with max_autotune or with cpp_wrapper,
    and threads bound to cores by OMP_PROC_BIND; and torch.compile on GPUs, which compiles for minutes.
    """

    name = "torch"

    def __init__(self, cores: int, device: str) -> None:
        torch.set_num_threads(cores)
        self.device = torch.device("cuda" if on_nvidia(device) else "cpu")

    def variants(self, workload: Workload) -> list[str]:
        if self.device.type == "cuda":
            return [] if workload.op or workload.compute == INT8 else ["eager", "channels_last", "graph"]
        if workload.compute != FULL and (workload.compute != "bf16" or workload.op):
            return []
        if workload.kind == "cached":
            return ["eager", "channels_last", "matmul", "compile"]
        images = workload.op is None or len(workload.op.shape) == 3
        variants = ["eager", "channels_last", "compile"] if images else ["eager", "compile"]
        return variants if workload.trains or workload.compute != FULL else [*variants, "jit"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        if isinstance(problem, OpProblem):
            return _op_step(problem, workload, variant)
        if self.device.type == "cuda":
            use_tf32(workload.compute == "tf32")
        network, weights = problem.network, problem.weights
        if not workload.trains:
            network, weights = fold_batchnorm(network, weights)
        products = workload.kind == "cached" and variant in ("matmul", "compile")
        settings = {"logits": True, "mirrored": True, "matrix_products": products}
        net = to_torch(network, weights, batchnorm=workload.batchnorm, **settings)
        inputs = net.encode(problem.inputs).to(self.device)
        net = net.to(self.device, memory_format=_layout(variant, inputs))  # pyright: ignore[reportCallIssue]
        inputs = _laid_out(inputs, variant)
        if workload.trains:
            labels = torch.from_numpy(problem.labels).to(self.device)
            return training(net.train(), inputs, labels, workload, variant)
        infer = inference(net.eval(), inputs, variant, workload)
        return lambda: infer().float().cpu().numpy()


def _layout(variant: str, tensor: torch.Tensor) -> torch.memory_format:
    return torch.contiguous_format if variant == "eager" or tensor.ndim != 4 else torch.channels_last


def _laid_out(tensor: torch.Tensor, variant: str) -> torch.Tensor:
    return tensor.contiguous(memory_format=_layout(variant, tensor))


class _Loss(nn.Module):
    def __init__(self, labels: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("labels", labels)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, self.labels)  # type: ignore[arg-type]


def _op_step(problem: OpProblem, workload: Workload, variant: str) -> OpStep:
    """The step of a single op. Variants as of networks."""
    if isinstance(problem.spec.op, Optimizer):
        return _update(problem, variant)
    if isinstance(problem.spec.op, Loss):
        return _loss(problem, variant)
    net = to_torch(problem.spec.network(), problem.named_weights, batchnorm="batch", mirrored=True).train()
    inputs = _laid_out(net.encode(problem.x), variant)
    net = net.to(memory_format=_layout(variant, inputs))
    if not workload.trains:
        infer = inference(net, inputs, variant, workload)

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
