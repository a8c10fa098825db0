"""Time and memory of updates of LSTMs and of nanoGPT's small run beside PyTorch's own modules, `nn.LSTM` and
`scaled_dot_product_attention`: `python tools/time_sequences.py [--processor-time] [NETWORK …]`, names of NETWORKS
(default: all that compute in float32). Networks in bf16 run on an NVIDIA GPU, PyTorch's by autocast. With
--processor-time all run on one core, and a turn is the least processor time of its updates: other programs change that
little."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import process_time

import numpy as np
from time_overheads import timed

import edgelearn as el
from edgelearn.child import Worker, WorkerError
from edgelearn.experiments.activity import PUBLISHED
from edgelearn.lab.measure import peak_resident_bytes, resident_bytes, restart_peak
from edgelearn.models.language import character_lstm, gpt
from edgelearn.ops import LSTM, Adam, AdamW, Attention, Dense, Embedding, ReLU

NETWORKS: dict[str, tuple[Callable[[], el.Network], int, str]] = {  # the batch size, and the compute type
    "watch": (lambda: PUBLISHED["lstm", "watch"].make((50, 6)), 64, "fp32"),
    "both": (lambda: PUBLISHED["lstm", "both"].make((50, 12)), 64, "fp32"),
    "phone": (lambda: PUBLISHED["lstm", "phone"].make((50, 6)), 64, "fp32"),
    "characters": (lambda: character_lstm(dropout=0), 10, "fp32"),
    "nanogpt": (gpt, 12, "fp32"),
    "larger nanogpt": (lambda: gpt(65, 256, 6, 6, 384), 64, "bf16"),
}
ONE_CORE, THREADS = "--processor-time", "POCL_MAX_PTHREAD_COUNT"
CONTENDERS = {"edgelearn": "Edgelearn", "PyTorch": "PyTorch", "PyTorch, compiled": "Compiled"}
ROUNDS, STEPS = 9, 5  # turns of each contender, and updates of a turn


def batch_of(network: el.Network, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a batch: random values, or tokens."""
    rng, (steps, *channels) = np.random.default_rng(0), network.input_shape
    x = rng.standard_normal((size, steps, *channels)) if channels else rng.integers(0, 65, (size, steps))
    (*each, classes) = network.shape_of(network.outputs[0])
    return x.astype(np.float32), rng.integers(0, classes, (size, *each)).astype(np.int32)


class Contender:
    """A network in a process of its own, which says how much memory its updates take."""

    update: Callable[[], object]

    def __init__(self) -> None:
        self.imported = resident_bytes()  # before the network is there

    def turn(self) -> float:
        """Milliseconds of an update."""
        return self._processor_time() if os.environ.get(THREADS) == "1" else timed(self.update, STEPS)

    def _processor_time(self) -> float:
        times = []
        for _ in range(STEPS):
            start = process_time()
            self.update()
            times.append(process_time() - start)
        return 1e3 * min(times)

    def forget(self) -> None:
        """Count the peak from now on, without what compiling took."""
        restart_peak()

    def memory(self) -> tuple[int, int]:
        """Peak of the process, and how much of that the network and its updates added, in bytes."""
        peak = peak_resident_bytes()
        return peak, peak - self.imported


class Edgelearn(Contender):
    def __init__(self, name: str) -> None:
        super().__init__()
        make, size, compute = NETWORKS[name]
        network, is_gpt = make(), "nanogpt" in name
        optimizer = AdamW(1e-3, beta_2=0.99, weight_decay=0.1, global_clipnorm=1.0) if is_gpt else Adam(1e-3)
        device = None if compute == "fp32" else "nvidia"
        model = el.Model(network, device=device).compile(optimizer, compute=compute)
        x, y = batch_of(network, size)
        self.update = lambda: model.train_on_batch(x, y)


class PyTorch(Contender):
    compiled = False

    def __init__(self, name: str) -> None:
        import torch

        super().__init__()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        make, size, compute = NETWORKS[name]
        network, is_gpt = make(), "nanogpt" in name
        device, halves = ("cpu", False) if compute == "fp32" else ("cuda", True)
        x, y = batch_of(network, size)
        module = (_gpt(network) if is_gpt else _lstms(network)).to(device)
        count = sum(p.numel() for p in module.parameters())
        doubled = sum(p.numel() for n, p in module.named_parameters() if "bias_hh" in n)  # a second bias of each gate
        assert count - doubled == network.count(), f"{count - doubled} parameters, not {network.count()}"
        if is_gpt:
            optimizer = torch.optim.AdamW(module.parameters(), 1e-3, (0.9, 0.99), weight_decay=0.1, fused=True)
        else:
            optimizer = torch.optim.Adam(module.parameters(), 1e-3, fused=True)
        self.x = (torch.from_numpy(x) if x.ndim == 3 else torch.from_numpy(x).long()).to(device)
        self.y = torch.from_numpy(y).long().flatten().to(device)
        run = torch.compile(module) if self.compiled else module

        def update() -> float:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=halves):
                loss = torch.nn.functional.cross_entropy(run(self.x), self.y)
            loss.backward()
            if is_gpt:
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        self.update = update


class Compiled(PyTorch):
    compiled = True


def _lstms(network: el.Network):
    """The LSTMs and dense layers of a network, as PyTorch's modules: (n, steps, ...) -> (n, classes)."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lstms, dense, channels = None, nn.ModuleList(), [], network.input_shape[-1]
            for node in network.nodes.values():
                match node.op:
                    case Embedding(vocabulary, channels):
                        self.first = nn.Embedding(vocabulary, channels)
                    case LSTM(units):
                        self.lstms.append(nn.LSTM(channels, units, batch_first=True))
                        channels = units
                    case Dense(units):
                        dense.append(nn.Linear(channels, units))
                        channels = units
                    case ReLU():
                        dense.append(nn.ReLU())
            self.dense = nn.Sequential(*dense)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.first is not None:
                x = self.first(x)
            for lstm in self.lstms:
                x, _ = lstm(x)
            return self.dense(x[:, -1])

    return Network()


def _gpt(network: el.Network):
    """nanoGPT's modules, without biases and dropout: tokens (n, steps) -> logits (n * steps, vocabulary)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    (context,), (_, vocabulary) = network.input_shape, network.shape_of("logits")
    attentions = [node.op for node in network.nodes.values() if isinstance(node.op, Attention)]
    channels = network.shape_of("norm")[-1]
    heads = attentions[0].heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(channels, bias=False), nn.LayerNorm(channels, bias=False)
            self.qkv = nn.Linear(channels, 3 * channels, bias=False)
            self.mixed = nn.Linear(channels, channels, bias=False)
            self.wide = nn.Linear(channels, 4 * channels, bias=False)
            self.narrow = nn.Linear(4 * channels, channels, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n, steps, _ = x.shape
            q, k, v = (a.view(n, steps, heads, -1).transpose(1, 2) for a in self.qkv(self.norm1(x)).chunk(3, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, steps, channels)
            x = x + self.mixed(y)
            return x + self.narrow(F.gelu(self.wide(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, channels)
            self.positions = nn.Parameter(torch.zeros(context, channels))
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in attentions)), nn.LayerNorm(channels, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.blocks(self.tokens(x) + self.positions))
            return F.linear(y, self.tokens.weight).flatten(0, 1)

    return GPT()


def main(words: list[str]) -> None:
    if ONE_CORE in words:  # of the processes to come, too
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.environ[THREADS] = "1"
    names = [word for word in words if word != ONE_CORE]
    for name in names or [name for name, (_, _, compute) in NETWORKS.items() if compute == "fp32"]:
        with ExitStack() as stack:
            workers = {}
            for contender, target in CONTENDERS.items():
                try:
                    workers[contender] = stack.enter_context(Worker(f"time_sequences:{target}", (name,)))
                    workers[contender].call("turn")
                    workers[contender].call("forget")
                except WorkerError as error:
                    print(f"{contender} is left out: {str(error).splitlines()[-1]}")
                    workers.pop(contender, None)
            times: dict[str, list[float]] = {contender: [] for contender in workers}
            for _ in range(ROUNDS):
                for contender, worker in workers.items():
                    times[contender].append(worker.call("turn"))
            memory = {contender: worker.call("memory") for contender, worker in workers.items()}
        ours = np.array(times["edgelearn"])
        print(f"{name}, batches of {NETWORKS[name][1]}:")
        for contender, values in times.items():
            low, middle, high = np.quantile(ours / np.array(values), (0.25, 0.5, 0.75))
            peak, added = (size / 1e6 for size in memory[contender])
            print(
                f"  {contender:<18} {median(values):7.2f} ms; ours is {middle:.2f} ({low:.2f} – {high:.2f}) of it; "
                f"process {peak:.0f} MB, {added:.0f} MB without its imports",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
