"""Safetensors files: edgelearn's own models, and plain weights under edgelearn's names."""

from __future__ import annotations

from pathlib import Path

from edgelearn.graph import Network

from . import model_file, safetensors
from .formats import Format, register, weights_of_a_network
from .model_file import ModelFile
from .weights import Weights


def _plain(path: Path, network: Network, skip: tuple[str, ...]) -> Weights:
    weights = safetensors.read_weights(path)
    return {name: array for name, array in weights.items() if name.partition("/")[0] not in skip}


def _read(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
    if not model_file.is_model(path):
        return weights_of_a_network(_plain)(path, network, skip)
    file = model_file.read(path)
    if network is None and not skip:
        return file
    kept = {name: array for name, array in file.weights.items() if name.partition("/")[0] not in skip}
    return ModelFile(network or file.network, kept, preprocessing=file.preprocessing, metadata=file.metadata)


register(Format("safetensors", (".safetensors",), b"", _read))
