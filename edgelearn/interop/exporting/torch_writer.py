"""Write a PyTorch state dict: weights under PyTorch's names, in its layouts. It needs PyTorch."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path

import torch

from edgelearn import atomic
from edgelearn.interop.model_file import ModelFile
from edgelearn.interop.state_dict import to_torch_layout, torch_name


def write(path: str | Path, file: ModelFile) -> None:
    """Write a state dict for modules whose layers are called as the network's: "conv1.weight", "bn.running_mean".
    `torch.load(path, weights_only=True)` reads it; its `_metadata["edgelearn"]` has class names and preprocessing.

    A linear layer after a Flatten has PyTorch's order of features, in which channels come first.

    Raises FormatError where that order can't be told, RunError if the file can't be written.
    """
    arrays = {torch_name(name): to_torch_layout(file.network, name, array) for name, array in file.weights.items()}
    state = OrderedDict((name, torch.from_numpy(array)) for name, array in arrays.items())
    state._metadata = {"": {"version": 1}, "edgelearn": {"version": 2, **file.texts()}}  # type: ignore[attr-defined]
    content = io.BytesIO()
    torch.save(state, content)
    atomic.write_bytes(path, content.getvalue())
