"""Safetensors files: weights by name, and whole models. They hold numbers and texts, no code.

A model file has everything: graph, weights, training state, and what an application needs around them. Tensors are
called "weights/LAYER/ROLE", "optimizer/SLOT/LAYER/ROLE", "ranges/LAYER/KIND" (range statistics of quantized tensors)
and "arrays/NAME" (arrays of the application). The metadata holds the entries of `ENTRIES` as JSON texts. Files are
written with the version below and refused if they are newer. Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic, records
from edgelearn.errors import EdgelearnError, FormatError
from edgelearn.graph import Network

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


def from_bytes(content: bytes, name: str) -> Weights:
    """The tensors of a file's content, by name. Raises FormatError with `name` for what is damaged, or has types of
    numbers that NumPy lacks."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(content)
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(
            f"{name} is not a safetensors file, or is damaged ({error}). Give another file, or restore it."
        ) from None


def read_metadata(path: str | Path) -> dict[str, str]:
    """Read the texts that a file holds besides its tensors, by name. Raises FormatError naming the file."""
    with opened(path) as file:
        return file.metadata() or {}


def to_bytes(weights: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the file's content, the same for the same weights and texts; write it with edgelearn.atomic to be safe
    from interruptions."""
    from safetensors.numpy import save

    content = save({name: np.ascontiguousarray(array) for name, array in weights.items()})
    if not metadata:
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    # The library writes texts in an order that differs from one process to the next.
    entries = {"__metadata__": dict(sorted(metadata.items())), **json.loads(content[8:end])}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()  # as the library writes it
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(content)[end:]))


FORMAT, VERSION = "edgelearn model", 1
GROUPS = ("weights", "optimizer", "ranges", "arrays")
ENTRIES: dict[str, Any] = {"position": dict, "preprocessing": dict, "class_names": list[str], "metadata": dict}
RANGE_SHAPE = (16,)  # the fields of a record of range statistics: see edgelearn.ops.quantize.FIELDS
_UNREADABLE = (EdgelearnError, ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class ModelFile:
    """The contents of a model file.

    Arguments:
    - `network`: the graph, with what is trainable.
    - `weights`: float32 arrays by "layer/role", all of the network's.
    - `optimizer`: the optimizer's state, float32 arrays by "slot/layer/role" in the weights' shapes (default none).
    - `ranges`: range statistics of quantized tensors, float32 (16,) by "layer/kind" (default none).
    - `position`: where training stands, as JSON values (default empty: no training to continue).
    - `preprocessing`: how inputs are made, as JSON values (default empty).
    - `class_names`: names of the outputs, in their order (default none).
    - `metadata`: anything else, as JSON values (default empty).
    - `arrays`: arrays of the application, of any shape and any type of number, by name (default none).
    """

    network: Network
    weights: Weights
    optimizer: Weights = field(default_factory=dict)
    ranges: Weights = field(default_factory=dict)
    position: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    arrays: Weights = field(default_factory=dict)

    def texts(self) -> dict[str, str]:
        """Class names, preprocessing and metadata as JSON texts by name, where there are some. Raises RunError if an
        entry is not JSON."""
        found = {name: getattr(self, name) for name in ("class_names", "preprocessing", "metadata")}
        return {name: atomic.to_json(value) for name, value in found.items() if value}


def write_model_file(path: str | Path, file: ModelFile) -> None:
    """Write `file` to `path` in one step: after a kill at any moment the old file or the new one is there.

    Raises RunError if the disk is full, the folder can't be written, or an entry is not JSON.
    """
    atomic.write_bytes(path, model_bytes(file))


def model_bytes(file: ModelFile) -> bytes:
    """Return the bytes that `write` writes. Raises RunError if an entry is not JSON."""
    tensors = {f"{group}/{name}": array for group in GROUPS for name, array in getattr(file, group).items()}
    entries = {name: atomic.to_json(getattr(file, name)) for name in ENTRIES}
    metadata = {"format": FORMAT, "version": str(VERSION), "network": file.network.to_json(), **entries}
    return to_bytes(tensors, metadata)


def read_model_file(path: str | Path) -> ModelFile:
    """Read a model file.

    Names, shapes and types are compared with the network before any array is made: a damaged or hostile file costs no
    more memory than its own size.
    Raises FormatError, naming the file and the place in it, if the file is damaged, of another kind, or newer.
    """
    with opened(path) as file:
        described = file.metadata() or {}
        if described.get("format") != FORMAT:
            raise FormatError(f"{path} is not an edgelearn model: give a file that Model.save wrote.")
        if described.get("version") != str(VERSION):
            raise FormatError(
                f"{path} is an edgelearn model of version {described.get('version', 'unknown')!s:.20}, and this "
                f"edgelearn reads version {VERSION}: update edgelearn."
            )
        network = _read_network(path, described.get("network", ""))
        entries = {name: _entry(path, described, name, kind) for name, kind in ENTRIES.items()}
        names = list(file.keys())
        for name in names:
            part = file.get_slice(name)
            _check_tensor(path, network, name, tuple(part.get_shape()), part.get_dtype())
        missing = [name for name in network.parameters if f"weights/{name}" not in set(names)]
        if missing:
            raise FormatError(f"{path} lacks 'weights/{missing[0]}': it is damaged. Restore it from a backup.")
        groups: dict[str, Weights] = {group: {} for group in GROUPS}
        for name in names:
            group, _, rest = name.partition("/")
            groups[group][rest] = np.asarray(file.get_tensor(name))
    class_names = tuple(entries.pop("class_names"))
    return ModelFile(network, **groups, **entries, class_names=class_names)


def is_model(path: str | Path) -> bool:
    """True if `path` is a safetensors file that calls itself an edgelearn model. Raises FormatError if it can't be
    read."""
    return read_metadata(path).get("format") == FORMAT


def _read_network(path: str | Path, text: str) -> Network:
    try:
        return Network.from_json(text)
    except _UNREADABLE as error:
        raise FormatError(f"{path}: 'network' can't be read ({error!s:.300}). Restore it from a backup.") from None


def _entry(path: str | Path, described: Mapping[str, str], name: str, kind: Any) -> Any:
    try:
        return records.parse(described[name], kind)
    except (KeyError, records.RecordError) as error:
        raise FormatError(f"{path}: '{name}' can't be read ({error!s:.200}). Restore it from a backup.") from None


def _check_tensor(path: str | Path, network: Network, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Raises FormatError unless `network` has a place for the tensor `name`."""
    group, _, rest = name.partition("/")
    if group == "arrays":
        if dtype not in NUMBERS:
            raise FormatError(f"{path}: '{name}' has type {dtype}, which NumPy doesn't have. Save it as F32.")
        return
    parameter = network.parameters.get(rest.partition("/")[2] if group == "optimizer" else rest)
    expected = RANGE_SHAPE if group == "ranges" else parameter.weight.array_shape if parameter else None
    kind = "U8" if parameter and parameter.weight.format else "F32"
    if group not in GROUPS or expected is None:
        raise FormatError(f"{path}: '{network.name}' has no place for '{name:.200}'. The file is damaged: restore it.")
    if shape != expected or dtype != kind:
        raise FormatError(
            f"{path}: '{name}' is {dtype} of shape {shape}, but '{network.name}' needs {kind} of shape {expected}. The "
            f"file is damaged: restore it from a backup."
        )
