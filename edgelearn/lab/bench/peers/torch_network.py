"""Steps of whole networks in PyTorch: float32, TF32, autocast to halves, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from edgelearn.lab.bench.workloads import Workload

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 65536.0  # that GradScaler starts with
WARM_UP = 3  # steps before a CUDA graph is captured, as PyTorch's manual asks for


def use_tf32(allowed: bool) -> None:
    """Have CUDA's matrix products and convolutions round to TF32, or not; and search for the fastest convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True


def autocast(workload: Workload, device: torch.device) -> torch.autocast:
    """The block in which operators choose the type of `workload`; without effect in float32 and TF32."""
    halves = workload.compute in AUTOCAST
    return torch.autocast(device.type, AUTOCAST.get(workload.compute, torch.bfloat16), enabled=halves)


def inference(net: nn.Module, inputs: torch.Tensor, variant: str, workload: Workload) -> Callable[[], torch.Tensor]:
    """A function that runs `net`: traced and frozen for `jit`, compiled for `compile`, captured for `graph`, else as it
    is."""
    net.requires_grad_(False)
    run: Any = net
    with torch.no_grad():
        if variant == "jit":
            run = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, inputs)))
        elif variant == "compile":
            run = torch.compile(net, options={"freezing": True})

    def infer() -> torch.Tensor:
        # A compiled, frozen network is for no_grad; elsewhere inference_mode is the quicker one.
        with torch.no_grad() if variant == "compile" else torch.inference_mode(), autocast(workload, inputs.device):
            return run(inputs)

    return _Captured(infer) if variant == "graph" else infer


def training(
    net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, workload: Workload, variant: str
) -> Callable[[], float]:
    """A function that updates `net` and returns the loss before."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, workload.learning_rate, workload.momentum, fused=True)
    if workload.momentum:  # an update that GradScaler skips leaves none behind
        optimizer.state.update({p: {"momentum_buffer": torch.zeros_like(p)} for p in trained})
    scaler = torch.amp.GradScaler(inputs.device.type, LOSS_SCALE, enabled=workload.compute == "fp16")
    run: Any = torch.compile(net) if variant == "compile" else net
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

    if variant != "graph":
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
