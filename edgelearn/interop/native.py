"""Safetensors files: edgelearn's own models, and plain weights under edgelearn's names or PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgelearn.errors import FormatError
from edgelearn.graph import Network

from . import model_file, safetensors
from .formats import Format, register, weights_of_a_network
from .model_file import ModelFile
from .state_dict import weights_of
from .weights import Weights


def _plain(path: Path, network: Network, skip: tuple[str, ...], names: Mapping[str, str] | None = None) -> Weights:
    return weights_of(path, safetensors.read_weights(path), network, skip, names, ordered=False)


def _read(
    path: Path, network: Network | None, skip: tuple[str, ...], names: Mapping[str, str] | None = None
) -> ModelFile:
    if not model_file.is_model(path):
        return weights_of_a_network(_plain)(path, network, skip, names=names)
    if names:
        raise FormatError(f"{path} is an edgelearn model, which says which weights a layer has: leave names out.")
    file = model_file.read(path)
    if network is None and not skip:
        return file
    kept = {name: array for name, array in file.weights.items() if name.partition("/")[0] not in skip}
    return ModelFile(network or file.network, kept, preprocessing=file.preprocessing, metadata=file.metadata)


register(Format("safetensors", (".safetensors",), b"", _read, options=("names",)))
