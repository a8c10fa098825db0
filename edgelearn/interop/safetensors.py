"""Weights as safetensors: numbers with names, and texts; no code. Format: https://huggingface.co/docs/safetensors"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

from .weights import Weights

NUMBERS = {"F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"}  # types that NumPy has


@contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """The file as `safetensors.safe_open` gives it: its header is checked, no tensor is read yet.

    Raises FormatError naming the file, also for what is read inside the block.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FormatError(f"There is no weight file {path}. Give the path of a safetensors file.")
    try:
        with safe_open(path, "numpy") as file:
            yield file
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path} is not a safetensors file, or is damaged ({error}). Give another file, or restore it."
        ) from None


def read_weights(path: str | Path) -> Weights:
    """Read all tensors of a file, by name. Raises FormatError naming the file."""
    with opened(path) as file:
        names = list(file.keys())
        for name in names:
            if (kind := file.get_slice(name).get_dtype()) not in NUMBERS:  # NumPy takes some if ml_dtypes is imported
                raise TypeError(f"'{name}' has type {kind}, which NumPy doesn't have")
        return {name: file.get_tensor(name) for name in names}


def read_metadata(path: str | Path) -> dict[str, str]:
    """Read the texts that a file holds besides its tensors, by name. Raises FormatError naming the file."""
    with opened(path) as file:
        return file.metadata() or {}


def to_bytes(weights: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the file's content; write it with edgelearn.atomic to be safe from interruptions."""
    from safetensors.numpy import save

    texts = None if metadata is None else dict(metadata)
    return save({name: np.ascontiguousarray(array) for name, array in weights.items()}, texts)
