"""Training steps of PyTorch, with torch.utils.checkpoint around each block or without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from edgelearn.compile.memory.policies import cuts
from edgelearn.graph import Network, Node
from edgelearn.interop.to_torch import to_torch


def prepare(network: Network, x: np.ndarray, labels: np.ndarray, checkpointed: bool) -> Callable[[], float]:
    """A training step on images (n, height, width, channels) with BatchNorm's batch statistics, at learning rate 0; it
    returns the loss. Raises FormatError for a network that PyTorch's version can't compute."""
    net = to_torch(network, batchnorm="batch", logits=True).train()
    optimizer = torch.optim.SGD([w for w in net.parameters() if w.requires_grad], lr=0.0)
    inputs, classes = net.encode(x).contiguous(), torch.from_numpy(labels).long()
    blocks = _blocks(network, net.nodes)

    def logits() -> torch.Tensor:
        if not checkpointed:
            return net(inputs)
        values = inputs
        for block in blocks:
            values = checkpoint(net.run, block, values, use_reentrant=False)
        return values

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(logits(), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _blocks(network: Network, nodes: list[Node]) -> list[list[Node]]:
    """The layers between tensors that everything behind them passes through."""
    ends = {next(iter(cut)) for cut in cuts(network) if len(cut) == 1}
    blocks: list[list[Node]] = [[]]
    for node in nodes:
        blocks[-1].append(node)
        if node.name in ends:
            blocks.append([])
    return [block for block in blocks if block]
