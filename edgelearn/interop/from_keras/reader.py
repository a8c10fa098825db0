"""Reads whole Keras models: .keras archives of Keras 3, and .h5 files of Keras 2 and 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

from ..foreign import ArrayFile, open_arrays
from ..importing import ForeignGraph, Operator, TensorInfo
from ..keras_h5 import list_layers, snake_case
from . import config as configuration
from .config import Call, Structure

ARCHIVE, FILE = "a .keras archive", "a Keras model in HDF5"
# Layers that act in training alone, and have no counterpart here: they are left out, and the metadata name them.
TRAINING_ONLY = {"ActivityRegularization", "AlphaDropout", "GaussianDropout", "GaussianNoise", "RandomBrightness",
                 "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation",
                 "RandomZoom", "StochasticDepth"}  # fmt: skip


def read_archive(path: Path) -> ForeignGraph:
    """Read a .keras archive. Raises FormatError naming the file."""
    with open_arrays(path, "keras", ARCHIVE) as file:
        structure = configuration.parse(file.texts["config.json"], path)
        version = _version(file.texts.get("metadata.json", "{}"))
        return _graph(file, structure, _in_archive(file, structure), version)


def read_hdf5(path: Path) -> ForeignGraph:
    """Read a whole model in HDF5. Raises FormatError naming the file, and if it holds weights alone."""
    with open_arrays(path, "hdf5", FILE) as file:
        text = "".join(file.texts.get("@model_config", []))
        if not text:
            raise FormatError(f"{path} holds weights without a graph: say of which network, with network=….")
        structure = configuration.parse(text, path)
        version = "".join(file.texts.get("model_weights@keras_version", file.texts.get("@keras_version", ["3"])))
        return _graph(file, structure, _in_hdf5(file, structure), version)


def holds_graph(path: Path) -> bool:
    """True if an HDF5 file holds a model's structure. Raises FormatError if it can't be read."""
    with open_arrays(path, "hdf5", FILE) as file:
        return "@model_config" in file.texts


def _graph(
    file: ArrayFile, structure: Structure, weights: dict[tuple[str, ...], dict[str, str]], version: str
) -> ForeignGraph:
    """The graph, and the arrays of its layers. `weights`: the file's names of a layer's arrays, by role."""
    needed = {call.path: weights.get(call.path, {}) for call in structure.calls}
    arrays = file.read([name for names in needed.values() for name in names.values()])
    constants, operators, left_out = {}, [], []
    for call in structure.calls:
        own = {role: f"{'/'.join(call.path)}@{role}" for role in needed[call.path]}
        constants |= {own[role]: _float(arrays[name]) for role, name in needed[call.path].items()}
        if _acts_in_training_alone(call):
            left_out.append(f"{'/'.join(call.path)} ({call.kind})")
        operators.append(_operator(call, tuple(own.values()), version))
    notes: dict[str, Any] = {"left out, since they act in training alone": left_out} if left_out else {}
    inputs = tuple(
        TensorInfo(name, shape, dtype, "NHWC" if len(shape) == 4 else "") for name, shape, dtype in structure.inputs
    )
    return ForeignGraph("Keras", structure.name, inputs, structure.outputs, tuple(operators), constants, metadata=notes)


def _operator(call: Call, arrays: tuple[str, ...], version: str) -> Operator:
    kind = "custom layer" if call.is_custom else "training only" if _acts_in_training_alone(call) else call.kind
    called = {"class_name": call.kind, "arguments": call.arguments, "keywords": call.keywords, "arrays": len(arrays)}
    number = int(version[0]) if version[:1].isdigit() else 3
    settings, is_frozen = {**call.config, **called}, call.config.get("trainable") is False
    return Operator(kind, call.path[-1], (*call.inputs, *arrays), call.outputs, settings, number, is_frozen)


def _acts_in_training_alone(call: Call) -> bool:
    shape = call.config.get("noise_shape") if call.kind == "Dropout" else None
    return call.kind in TRAINING_ONLY or bool(shape)


def _float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def _version(metadata: str) -> str:
    try:
        return str(json.loads(metadata)["keras_version"])
    except (KeyError, RecursionError, TypeError, ValueError):
        return "3"


def _in_archive(file: ArrayFile, structure: Structure) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of each layer's arrays by number: "layers/conv2d_1/vars/0". Keras numbers layers of a class; since 3.6 it
    writes the layer's name beside its arrays."""
    named = {group.removesuffix("/vars@name"): texts[0] for group, texts in file.texts.items()
             if group.endswith("/vars@name") and texts}  # fmt: skip
    folders: dict[tuple[str, ...], str] = {}
    for group, name in named.items():
        parts = group.split("/")
        around = [named.get("/".join(parts[: n + 1]), "") for n in range(1, len(parts) - 1, 2)]
        folders[(*around, name)] = group
    if not folders:
        folders = _numbered(structure)
    return {
        path: {str(n): name for n, name in enumerate(_numbered_arrays(file, folder))}
        for path, folder in folders.items()
    }


def _numbered_arrays(file: ArrayFile, folder: str) -> Iterator[str]:
    number = 0
    while (name := f"{folder}/vars/{number}") in file.arrays:
        yield name
        number += 1


def _numbered(structure: Structure) -> dict[tuple[str, ...], str]:
    """Folders by the classes of layers, as Keras numbers them."""
    folders: dict[tuple[str, ...], str] = {}
    counts: dict[str, int] = {}
    for call in structure.calls:
        if call.path in folders or call.kind.startswith("ops."):
            continue
        if len(call.path) > 1:
            raise FormatError(f"'{'/'.join(call.path)}' is in a nested model of an early Keras 3: save it anew.")
        snake = snake_case(call.kind)
        number = counts.get(snake, 0)
        counts[snake] = number + 1
        folders[call.path] = f"layers/{snake}" + (f"_{number}" if number else "")
    return folders


def _in_hdf5(file: ArrayFile, structure: Structure) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of each layer's arrays by number. The arrays of a nested model are all in its group."""
    layers = list_layers(file)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for call in structure.calls:
        names = layers.get(call.path[0], [])
        if len(call.path) > 1:
            names = [name for name in names if name.split("/")[-2:-1] == [call.path[-1]]]
        found[call.path] = {str(n): name for n, name in enumerate(names)}
    return found
