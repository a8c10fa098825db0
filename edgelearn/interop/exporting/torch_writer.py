"""Write a PyTorch state dict: weights under PyTorch's names, in its layouts. It needs PyTorch."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

from edgelearn import atomic
from edgelearn.graph import Network
from edgelearn.interop.model_file import ModelFile
from edgelearn.ops import DepthwiseConv2D

ROLES = {
    "kernel": "weight", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
    "moving_variance": "running_var",
}  # fmt: skip


def write(path: str | Path, file: ModelFile) -> None:
    """Write a state dict for modules whose layers are called as the network's: "conv1.weight", "bn.running_mean".
    `torch.load(path, weights_only=True)` reads it; its `_metadata["edgelearn"]` has class names and preprocessing.

    A linear layer behind a Flatten keeps the network's order of features, in which channels come last.

    Raises RunError if the file can't be written.
    """
    state = OrderedDict((torch_name(name), tensor_of(file.network, name, a)) for name, a in file.weights.items())
    state._metadata = {"": {"version": 1}, "edgelearn": {"version": 1, **file.texts()}}  # type: ignore[attr-defined]
    content = io.BytesIO()
    torch.save(state, content)
    atomic.write_bytes(path, content.getvalue())


def torch_name(name: str) -> str:
    """The name of the parameter "layer/role"."""
    layer, _, role = name.partition("/")
    return f"{layer}.{ROLES.get(role, role)}"


def tensor_of(network: Network, name: str, array: np.ndarray) -> torch.Tensor:
    """A weight in PyTorch's layout: (filters, input channels / groups, height, width) or (outputs, inputs)."""
    parameter = network.parameters[name]
    if parameter.role == "kernel" and array.ndim == 4:
        depthwise = isinstance(network.nodes[parameter.layer].op, DepthwiseConv2D)
        array = array.transpose((2, 3, 0, 1) if depthwise else (3, 2, 0, 1))
    elif parameter.role == "kernel" and array.ndim == 2:
        array = array.T
    return torch.from_numpy(np.ascontiguousarray(array))
