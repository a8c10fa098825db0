"""Weights of trained embeddings, as run folders hold them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgelearn import records
from edgelearn.errors import FormatError
from edgelearn.interop import safetensors
from edgelearn.keywords.learners import DummyGenerator, Embedder

from .config import KeywordsConfig
from .networks import DUMMY_LAYERS, FRONT_END, SECONDS, make_network

WEIGHTS = "weights.safetensors"  # of the embedding and of the layers it was trained with
COMMAND = "edgelearn keywords train"


def read_start(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the weights `names` from a file. Raises FormatError if it lacks one."""
    stored = safetensors.read_weights(path)
    if missing := [name for name in names if name not in stored]:
        raise FormatError(
            f"{path} has no {missing[0]!r}, which this embedding has. Give the weights of a run of "
            f"`{COMMAND}` with the same --network."
        )
    return {name: stored[name] for name in names}


def make_embedder(config: KeywordsConfig, weights: dict[str, np.ndarray]) -> Embedder:
    """An embedder of a trained network, with its generator of dummy prototypes, if any, and without the classifier of
    the training words."""
    network = make_network(config)
    own = {name: weights[name] for name in network.parameters}
    dummies = None
    if config.method == "dummy-prototypes":
        first, second = DUMMY_LAYERS
        dummies = DummyGenerator(
            weights[f"{first}/kernel"], weights[f"{first}/bias"], weights[f"{second}/kernel"],
            weights[f"{second}/bias"], config.distance, config.scale, config.dummy_temperature,
        )  # fmt: skip
    return Embedder(network, own, FRONT_END, SECONDS, None, config.device, dummies)


def read_run(folder: Path) -> tuple[KeywordsConfig, dict]:
    """Read configuration and weights from the folder of a finished run. Raises FormatError for another folder."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise FormatError(
            f"{folder} has no trained network, {WEIGHTS}. Give the folder of a run of `{COMMAND}`; one "
            f"that was interrupted is finished with --resume {folder.name}."
        )
    weights, metadata = safetensors.read_weights(path), safetensors.read_metadata(path)
    if "config" not in metadata:
        raise FormatError(f"{path} has no configuration. Give the folder of a run of `{COMMAND}`.")
    try:
        return KeywordsConfig.from_dict(records.parse(metadata["config"], dict)), weights
    except (records.RecordError, TypeError) as error:
        raise FormatError(f"{path}: its configuration is damaged ({error}). Restore it from a backup.") from None
