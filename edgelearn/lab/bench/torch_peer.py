"""PyTorch, as strong as it gets in each type: float32, TF32, autocast to halves, torch.compile, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor
from torch._inductor import list_mode_options
from torch.nn import functional as F

from edgelearn.interop.to_torch import to_torch
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.ops import BatchNormalization, Loss, Optimizer

from .contenders import on_nvidia
from .workloads import FULL, INT8, NAME, OpProblem, Workload, digest, make_problem

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 65536.0  # that GradScaler starts with
WARM_UP = 3  # steps before a CUDA graph is captured, as PyTorch's manual asks for
COMPILERS = {"compile": "default", "max_autotune": "max-autotune-no-cudagraphs"}  # torch.compile's mode by variant


def use_tf32(allowed: bool) -> None:
    """Have CUDA's matrix products and convolutions round to TF32, or not; and search for the fastest convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True


def autocast(workload: Workload, device: torch.device) -> torch.autocast:
    """The block in which operators choose the type of `workload`; without effect in float32 and TF32."""
    halves = workload.compute in AUTOCAST
    return torch.autocast(device.type, AUTOCAST.get(workload.compute, torch.bfloat16), enabled=halves)


def is_captured(device: torch.device, variant: str) -> bool:
    """True if the steps of `variant` replay a CUDA graph: on a GPU those of compiled networks do, too."""
    return device.type == "cuda" and (variant == "graph" or variant in COMPILERS)


def inference(net: nn.Module, inputs: torch.Tensor, variant: str, workload: Workload) -> Callable[[], torch.Tensor]:
    """A function that runs `net`: traced and frozen for `jit`, compiled by those of COMPILERS, else as it is; captured
    if `is_captured`."""
    net.requires_grad_(False)
    run: Any = net
    with torch.no_grad():
        if variant == "jit":
            run = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, inputs)))
        elif variant in COMPILERS:
            run = torch.compile(net, options={"freezing": True} | list_mode_options(COMPILERS[variant]))

    def infer() -> torch.Tensor:
        # A compiled, frozen network is for no_grad; elsewhere inference_mode is the quicker one.
        with torch.no_grad() if variant in COMPILERS else torch.inference_mode(), autocast(workload, inputs.device):
            return run(inputs)

    return _Captured(infer) if is_captured(inputs.device, variant) else infer


def training(
    net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, workload: Workload, variant: str
) -> Callable[[], float]:
    """A function that updates `net` and returns the loss before."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, workload.learning_rate, workload.momentum, fused=True)
    if workload.momentum:  # an update that GradScaler skips leaves none behind
        optimizer.state.update({p: {"momentum_buffer": torch.zeros_like(p)} for p in trained})
    scaler = torch.amp.GradScaler(inputs.device.type, LOSS_SCALE, enabled=workload.compute == "fp16")
    run: Any = torch.compile(net, mode=COMPILERS[variant]) if variant in COMPILERS else net
    parts = list(zip(inputs.split(workload.micro_batch), labels.split(workload.micro_batch), strict=True))

    def update() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for examples, classes in parts:
            with autocast(workload, inputs.device):
                loss = F.cross_entropy(run(examples), classes) / len(parts)
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    if not is_captured(inputs.device, variant):
        return lambda: update().item()
    tensors = [tensor.detach() for tensor in (*net.parameters(), *net.buffers())]
    before = [tensor.clone() for tensor in tensors]

    def restart() -> None:
        """Undo the updates of the warm-up."""
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        for state in optimizer.state.values():
            if isinstance(momentum := state.get("momentum_buffer"), torch.Tensor):
                momentum.zero_()
        if scaler.is_enabled():
            scaler.update(LOSS_SCALE)

    replay = _Captured(update, restart)
    return lambda: replay().item()


class _Captured:
    """A CUDA graph of `run`, captured after some calls of it, which `restart` undoes. Calling it replays the graph. It
    holds `run`, since the graph reads and writes the memory of its tensors."""

    def __init__(self, run: Callable[[], torch.Tensor], restart: Callable[[], None] = lambda: None) -> None:
        self.run, self.graph = run, torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        restart()
        with torch.cuda.graph(self.graph):
            self.result = run()

    def __call__(self) -> torch.Tensor:
        self.graph.replay()
        return self.result


OpStep = Callable[[], Callable[[], list[float]]]


class TorchPeer:
    """Variants: `eager` is NCHW, all others keep images channels-last. `matmul` computes the 1x1 convolution of
    "cached" as a matrix product; `compile` and `max_autotune` are torch.compile's, which on a GPU compiles for 20
    seconds to minutes (reported as the time of the first step); there their steps replay a CUDA graph, as those of
    `graph` do. Halves are those of autocast, with a GradScaler in fp16. Computes on NVIDIA's GPU if that is the OpenCL
    device, else on the processor.

    Left out, since on two cores they were never faster than these: torch.compile with max_autotune or with cpp_wrapper
    there, and threads bound to cores by OMP_PROC_BIND.
    """

    name = "torch"

    def __init__(self, cores: int, device: str) -> None:
        torch.set_num_threads(cores)
        self.device = torch.device("cuda" if on_nvidia(device) else "cpu")
        if self.device.type == "cuda":  # a GPU's steps aren't slowed by a pool of compiler processes beside them
            inductor.compile_threads = cores

    def variants(self, workload: Workload) -> list[str]:
        if self.device.type == "cuda":
            return [] if workload.op or workload.compute == INT8 else ["eager", "channels_last", "graph", *COMPILERS]
        if workload.compute != FULL and (workload.compute != "bf16" or workload.op):
            return []
        if workload.kind == "cached":
            return ["eager", "channels_last", "matmul", "compile"]
        images = workload.op is None or len(workload.op.shape) == 3
        variants = ["eager", "channels_last", "compile"] if images else ["eager", "compile"]
        frozen = workload.op and isinstance(workload.op.op, BatchNormalization)  # of a batch's statistics nothing is
        return variants if workload.trains or workload.compute != FULL or frozen else [*variants, "jit"]

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


def _op_step(problem: OpProblem, workload: Workload, variant: str) -> OpStep:
    """The step of a single op. Variants as of networks."""
    compiled: Any = torch.compile if variant == "compile" else lambda run: run
    if isinstance(problem.spec.op, Optimizer):
        parameter = nn.Parameter(torch.from_numpy(problem.x))
        parameter.grad = torch.from_numpy(problem.dy)
        update = compiled(torch.optim.SGD([parameter], problem.learning_rate, fused=variant != "compile").step)

        def step() -> Callable[[], list[float]]:
            update()
            return lambda: digest(parameter.detach().numpy())

        return step
    net, dy, weights = None, None, []
    if isinstance(problem.spec.op, Loss):
        inputs, labels = torch.from_numpy(problem.x), torch.from_numpy(problem.labels)
        run = compiled(lambda logits: F.cross_entropy(logits, labels))
    else:
        net = to_torch(problem.spec.network(), problem.named_weights, batchnorm="batch", mirrored=True)
        net.train(workload.trains or isinstance(problem.spec.op, BatchNormalization))
        inputs, dy = (_laid_out(net.encode(array), variant) for array in (problem.x, problem.dy))
        net = net.to(memory_format=_layout(variant, inputs))
        weights = [net.tensor(f"{NAME}/{role}") for role in problem.trained]
        infer = None if workload.trains else inference(net, inputs, variant, workload)
        run = (lambda _: infer()) if infer else compiled(net)
    decode = net.decode if net else lambda tensor: tensor.detach().numpy()
    sources = weights if problem.spec.reads_pictures else [inputs, *weights]
    if workload.trains:
        inputs.requires_grad_(not problem.spec.reads_pictures)

    def step() -> Callable[[], list[float]]:
        y = run(inputs)
        gradients = torch.autograd.grad(y, sources, dy) if workload.trains else ()

        def results() -> list[float]:
            dx = gradients[: len(gradients) - len(weights)]
            for weight, gradient in zip(weights, gradients[len(dx) :], strict=False):
                weight.grad = gradient
            found = net.gradients() if net and gradients else {}
            return digest(decode(y), *map(decode, dx), *found.values())

        return results

    return step
