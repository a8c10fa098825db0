"""Weights as safetensors: plain numbers with names, no code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgelearn.errors import FormatError


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """All tensors of a file by name. Raises FormatError naming the file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not Path(path).is_file():
        raise FormatError(f"There is no weight file {path}. Give the path of a safetensors file.")
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path} is not a safetensors file, or is damaged ({error}). Give another file, or restore it."
        ) from None


def read_metadata(path: str | Path) -> dict[str, str]:
    """What a file says beside its tensors: texts by name, none if it says nothing. Raises FormatError naming the
    file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{path} is not a safetensors file, or is damaged ({error}). Give another file, or restore it."
        ) from None


def to_bytes(weights: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """The file's content: write it with edgelearn.lab.runs.atomic to be safe from interruptions."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in weights.items()}, metadata)
