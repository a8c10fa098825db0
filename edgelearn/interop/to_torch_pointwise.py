"""Activations and arithmetic in PyTorch: handlers of to_torch.py. Images are channels first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch.nn import functional as F

from edgelearn.graph import Node
from edgelearn.ops import Add, Op, ReLU, SiLU
from edgelearn.ops.scale import WithWeight

from .pointwise import ACTIVATIONS, ARITHMETIC


def _activation(function: Callable[..., torch.Tensor], net: Any, node: Node, x: torch.Tensor) -> torch.Tensor:
    return function(torch, node.op, x)


def _arithmetic(function: Callable[..., torch.Tensor], net: Any, node: Node, *x: torch.Tensor) -> torch.Tensor:
    """Computed with the network's order of axes, where operands have different ones."""
    operands = list(x)
    if isinstance(node.op, WithWeight):
        operands.append(_in_order(net.role(node, node.op.role)))
    elif all(a.shape == x[0].shape for a in x):
        return function(torch, node.op, *x)
    rank = len(node.shape) + 1
    y = function(
        torch, node.op, *(_with_rank(_channels_last(a), rank) for a in operands[: len(x)]), *operands[len(x) :]
    )
    return y.permute(0, 3, 1, 2) if y.ndim == 4 else y


def _in_order(weight: torch.Tensor) -> torch.Tensor:
    """A weight with the network's order of axes."""
    return weight.permute(2, 3, 1, 0) if weight.ndim == 4 else weight.permute(*reversed(range(weight.ndim)))


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def _with_rank(x: torch.Tensor, rank: int) -> torch.Tensor:
    """With sizes of 1 between the batch and an example's axes."""
    return x.reshape(len(x), *(1,) * (rank - x.ndim), *x.shape[1:])


def _relu(net: Any, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, ReLU)
    if node.op.max_value not in (None, 6):
        return F.hardtanh(x, 0.0, node.op.max_value)
    return (F.relu if node.op.max_value is None else F.relu6)(x, inplace=net.overwrites(node))


POINTWISE: dict[type[Op], Callable[..., torch.Tensor]] = {
    **{op: partial(_activation, function) for op, function in ACTIVATIONS.items()},
    **{op: partial(_arithmetic, function) for op, function in ARITHMETIC.items()},
    Add: partial(_arithmetic, lambda m, op, *x: reduce(add, x)),
    ReLU: _relu,
    SiLU: lambda net, node, x: F.silu(x),
}
