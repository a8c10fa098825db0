"""The weights of embeddings that are trained, as runs keep them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.interop import safetensors
from edgelearn.keywords.learners import DummyGenerator, Embedder

from .config import KeywordsConfig
from .networks import FRONT_END, SECONDS, make_network

WEIGHTS = "weights.safetensors"  # the network with what it was trained with
COMMAND = "edgelearn keywords train"


def read_start(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The weights `names` of a file. Raises FormatError where it lacks one: none is left as it was drawn."""
    found = safetensors.read_weights(path)
    if missing := [name for name in names if name not in found]:
        raise FormatError(
            f"{path} has no {missing[0]!r}, which this embedding has. Give the weights of a run of "
            f"`{COMMAND}` with the same --network."
        )
    return {name: found[name] for name in names}


def make_embedder(config: KeywordsConfig, weights: dict[str, np.ndarray]) -> Embedder:
    """The embedding of `config`, with its dummies' generator where there is one, without a classifier of the words that
    it was trained with."""
    network = make_network(config)
    own = {name: weights[name] for name in network.parameters}
    dummies = None
    if config.method == "dummies":
        arrays = (weights[f"{layer}/{role}"] for layer in ("dummies_dense", "dummies") for role in ("kernel", "bias"))
        dummies = DummyGenerator(*arrays, config.distance, config.scale, config.relief)
    return Embedder(network, own, FRONT_END, SECONDS, None, config.device, dummies)


def read_run(folder: Path) -> tuple[KeywordsConfig, dict]:
    """The configuration and the weights of a finished KeywordsExperiment. Raises FormatError for another folder."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise FormatError(
            f"{folder} has no trained network, {WEIGHTS}. Give the folder of a run of `{COMMAND}`; one "
            f"that was interrupted is finished with --resume {folder.name}."
        )
    weights, metadata = safetensors.read_weights(path), safetensors.read_metadata(path)
    if "config" not in metadata:
        raise FormatError(f"{path} doesn't say how it was trained. Give the folder of a run of `{COMMAND}`.")
    return KeywordsConfig.from_dict(json.loads(metadata["config"])), weights
