"""A checkpoint in one safetensors file: tensors, a JSON state, and a SHA-256 of it all.

The digest stands in the file's metadata and is taken over every byte of the file with the digest's own
64 characters set to zero, so a change anywhere, header included, is noticed.
Format: https://huggingface.co/docs/safetensors (an 8-byte header length, a JSON header, the data).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from edgelearn import atomic, records
from edgelearn.errors import FormatError, RunError

FORMAT = "edgelearn checkpoint 1"
_DIGEST_KEY = b'"sha256":"'
_NO_DIGEST = b"0" * 64


def encode(tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> bytes:
    """The checkpoint file's bytes. Raises RunError for a data type or a state that can't be stored."""
    arrays = {name: _storable(name, array) for name, array in tensors.items()}
    metadata = {"format": FORMAT, "state": atomic.to_json(state), "sha256": _NO_DIGEST.decode()}
    data = safetensors.numpy.save(arrays, metadata=metadata)
    start = data.index(_DIGEST_KEY + _NO_DIGEST) + len(_DIGEST_KEY)
    digest = hashlib.sha256(data).hexdigest().encode()
    return data[:start] + digest + data[start + len(digest) :]


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and state of the checkpoint at `path`.

    Raises FormatError if the file can't be read, is not a checkpoint, or was changed since it was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path} can't be read: {error.strerror}. Restore it from a backup.") from error
    try:
        header_end = 8 + int.from_bytes(data[:8], "little")
        metadata = records.parse(data[8:header_end], dict)["__metadata__"]
        if metadata["format"] != FORMAT:
            raise ValueError(f"its format is {metadata['format']!r}, not {FORMAT!r}")
        digest = metadata["sha256"].encode()
        start = data.index(_DIGEST_KEY + digest, 8, header_end) + len(_DIGEST_KEY)
        if _digest_of(data, start, len(digest)) != digest:
            raise ValueError("its contents don't match its SHA-256")
        state = records.parse(metadata["state"], dict)
        tensors = safetensors.numpy.load(data)
    except (ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        raise FormatError(f"The checkpoint {path} ({len(data):,} bytes) is corrupt: {_reason(error)}.") from error
    return {name: np.require(array, requirements="W") for name, array in tensors.items()}, state


def _digest_of(data: bytes, start: int, length: int) -> bytes:
    hasher = hashlib.sha256(data[:start])
    hasher.update(b"0" * length)
    hasher.update(memoryview(data)[start + length :])
    return hasher.hexdigest().encode()


def _reason(error: Exception) -> str:
    if isinstance(error, records.RecordError | KeyError | TypeError | AttributeError):
        return "its header is not that of a checkpoint"
    return str(error)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")  # safetensors takes an array's memory as it lies
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise RunError(
            f"Tensor {name!r} has data type {array.dtype}, which a checkpoint can't hold. "
            "Convert it to a boolean, integer or floating-point type of at most 64 bits."
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)
