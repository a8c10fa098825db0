"""A network of ours as PyTorch runs it, with torch.utils.checkpoint around each block or without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from edgelearn.compile.memory.policies import cuts
from edgelearn.errors import RunError
from edgelearn.graph import INPUT, Network
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, ReLU, Softmax


class Twin:
    """The same weights, BatchNorm with the batch's statistics, activations in place."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.weights = {name: _tensor(network, name, w) for name, w in network.initialize(0).items()}
        ends = [next(iter(cut)) for cut in cuts(network) if len(cut) == 1]
        self.parts: list[list] = [[]]
        for node in network.nodes.values():
            if not isinstance(node.op, Softmax):
                self.parts[-1].append(node)
                if node.name in ends:
                    self.parts.append([])

    def run(self, part: list, x: torch.Tensor) -> torch.Tensor:
        values = {(part[0].inputs or (INPUT,))[0]: x}
        for node in part:
            values[node.name] = self.apply(node, *(values[name] for name in node.inputs))
        return values[part[-1].name]

    def logits(self, x: torch.Tensor, checkpointed: bool) -> torch.Tensor:
        for part in filter(None, self.parts):
            x = checkpoint(self.run, part, x, use_reentrant=False) if checkpointed else self.run(part, x)
        return x

    def apply(self, node, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        op = node.op
        get = {role: self.weights.get(f"{node.name}/{role}") for role in ("kernel", "bias", "gamma", "beta")}
        match op:
            case Conv2D() | DepthwiseConv2D():
                groups = x.shape[1] if isinstance(op, DepthwiseConv2D) else op.groups
                window = op.window((*x.shape[2:], x.shape[1]))
                pads = window.padding
                if any(low != high for low, high in pads):
                    x, pads = F.pad(x, (*pads[1], *pads[0])), ((0, 0), (0, 0))
                sides = [low for low, _ in pads]
                return F.conv2d(x, get["kernel"], get["bias"], window.strides, sides, window.dilation, groups)
            case BatchNormalization() if type(op) is BatchNormalization:
                return F.batch_norm(x, None, None, get["gamma"], get["beta"], training=True, eps=op.epsilon)
            case ReLU():
                return F.relu6(x, inplace=True) if op.max_value == 6 else F.relu(x, inplace=True)
            case Add():
                return x + others[0]
            case GlobalAveragePooling2D():
                return x.mean((2, 3))
            case Dense():
                return F.linear(x, get["kernel"], get["bias"])
        raise RunError(f"PyTorch's twin has no {type(op).__name__}: leave the lanes of torch out for this network.")


def prepare(network: Network, x: np.ndarray, labels: np.ndarray, checkpointed: bool) -> Callable[[], float]:
    """A training step on NHWC pictures; it gives the loss."""
    twin = Twin(network)
    trained = [w for name, w in twin.weights.items() if name in network.trainable]
    optimizer = torch.optim.SGD([w.requires_grad_() for w in trained], lr=0.0)
    inputs = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    classes = torch.from_numpy(labels).long()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(twin.logits(inputs, checkpointed), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _tensor(network: Network, name: str, w: np.ndarray) -> torch.Tensor:
    op = network.nodes[name.split("/")[0]].op
    if name.endswith("/kernel") and isinstance(op, DepthwiseConv2D):
        w = w.reshape(*w.shape[:2], -1)[..., None].transpose(2, 3, 0, 1)
    elif name.endswith("/kernel"):
        w = w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.T
    return torch.from_numpy(np.ascontiguousarray(w))
