"""Ops that move or reduce values, in PyTorch: handlers of to_torch.py. Images are channels first; tensors of other
ranks have the network's order of axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from edgelearn.graph import Node
from edgelearn.ops import (
    AdaptiveAveragePooling2D,
    Flatten,
    GlobalMaxPooling2D,
    MatMul,
    Max,
    Mean,
    Op,
    Pad,
    PadChannels,
    Reshape,
    Resize,
    Slice,
    SliceChannels,
    SpaceToDepth,
    Sum,
    Take,
    Transpose,
    UpSampling2D,
    ZeroPadding2D,
)
from edgelearn.ops.axes import positions
from edgelearn.ops.linear_map import LinearMap
from edgelearn.ops.reductions import Reduction


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Values of an example in the network's order, channels last."""
    return channels_last(x).flatten(1)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """The network's order of axes."""
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """The opposite of `channels_last`."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _reshape(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    return channels_first(_flat(x).reshape(len(x), *node.shape))


def _transpose(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Transpose)
    x = channels_last(x)
    order = positions(node.op.axes, tuple(x.shape[1:]))
    return channels_first(x.permute(0, *(axis + 1 for axis in order)))


def _slice(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Slice)
    x = channels_last(x)
    for axis, r in enumerate(node.op.ranges(tuple(x.shape[1:])), start=1):
        x = x.index_select(axis, r.begin + r.stride * torch.arange(r.size, device=x.device))
    return channels_first(x)


def _pad(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, Pad)
    x = channels_last(x)
    if node.op.mode == "constant":
        sides = [side for sides in reversed(node.op.padding) for side in sides]
        return channels_first(F.pad(x, sides, value=node.op.value))
    for axis, sides in enumerate(node.op.padding, start=1):
        places = np.pad(np.arange(x.shape[axis]), sides, node.op.mode)  # pyright: ignore[reportCallIssue, reportArgumentType]
        x = x.index_select(axis, torch.from_numpy(places).to(x.device))
    return channels_first(x)


def _reduction(function: Callable[..., torch.Tensor]) -> Callable[[nn.Module, Node, torch.Tensor], torch.Tensor]:
    def build(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(node.op, Reduction)
        x = channels_last(x)
        axes = [axis + 1 for axis in node.op.reduced(tuple(x.shape[1:]))]
        return channels_first(function(x, axes, keepdim=node.op.keepdims))

    return build


def _slice_channels(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, SliceChannels)
    return x[:, node.op.start : node.op.start + node.op.size]


def _pad_channels(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, PadChannels)
    return F.pad(x, (0, 0) * (x.ndim - 2) + (node.op.before, node.op.after))


def _space_to_depth(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, SpaceToDepth)
    n, channels, height, width = x.shape
    size = node.op.size
    squares = x.reshape(n, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return squares.reshape(n, -1, height // size, width // size)


def _zero_padding(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, ZeroPadding2D)
    vertical, horizontal = node.op.sides
    return F.pad(x, (*horizontal, *vertical))


def _resize(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own function where it has the same convention, else products with matrices."""
    op = node.op._resize((*x.shape[2:], x.shape[1])) if isinstance(node.op, UpSampling2D) else node.op
    assert isinstance(op, Resize)
    mode = TORCH_MODES.get((op.interpolation, op.coordinates, op.rounding if op.selects else ""))
    if mode is None or op.scale is not None:
        return _linear_map(net, node, x)
    return F.interpolate(x, node.shape[:2], **mode)  # type: ignore[arg-type]


def _linear_map(net: nn.Module, node: Node, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(node.op, LinearMap)
    rows, columns = (torch.from_numpy(m).to(x) for m in node.op.matrices((*x.shape[2:], x.shape[1])))
    return torch.einsum("yh,nchw,xw->ncyx", rows, x, columns)


def _matmul(net: nn.Module, node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return channels_first(channels_last(a) @ channels_last(b))


def _take(net: nn.Module, node: Node, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    x = channels_last(x)
    examples = torch.arange(len(x), device=x.device)[:, None]
    return channels_first(x[examples, numbers.round().long()])


TORCH_MODES = {
    ("bilinear", "half_pixel", ""): {"mode": "bilinear", "align_corners": False},
    ("bilinear", "align_corners", ""): {"mode": "bilinear", "align_corners": True},
    ("nearest", "asymmetric", "floor"): {"mode": "nearest"},
    ("nearest", "half_pixel", "round_prefer_ceil"): {"mode": "nearest-exact"},
}

SHAPES: dict[type[Op], Callable[..., torch.Tensor]] = {
    AdaptiveAveragePooling2D: lambda net, node, x: F.adaptive_avg_pool2d(x, node.shape[:2]),
    Flatten: lambda net, node, x: _flat(x),
    GlobalMaxPooling2D: _reduction(torch.amax),
    MatMul: _matmul,
    Max: _reduction(torch.amax),
    Mean: _reduction(torch.mean),
    Pad: _pad,
    PadChannels: _pad_channels,
    Reshape: _reshape,
    Resize: _resize,
    Slice: _slice,
    SliceChannels: _slice_channels,
    SpaceToDepth: _space_to_depth,
    Sum: _reduction(torch.sum),
    Take: _take,
    Transpose: _transpose,
    UpSampling2D: _resize,
    ZeroPadding2D: _zero_padding,
}
