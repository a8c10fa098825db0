"""An embedder in a file: weights as safetensors, which say what network and what features they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from edgelearn.data.audio import features
from edgelearn.device import Device
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.interop import safetensors

from .learners import Embedder

_KIND, _VERSION = "edgelearn embedder", 1


def to_bytes(
    network: Network, weights: Mapping, front_end: features.FrontEnd, seconds: float = 1.0,
    notes: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """The file's content: `network`, whose output is an embedding, with `weights`, and `notes` on where it comes from.
    Write it with edgelearn.lab.runs.atomic to be safe from interruptions."""
    head = {"version": _VERSION, "front_end": features.to_json(front_end), "seconds": seconds}
    described = {_KIND: json.dumps(head), "network": network.to_json()}
    return safetensors.to_bytes({name: weights[name] for name in network.parameters}, described | dict(notes or {}))


def load_embedder(path: str | Path, device: str | Device | None = None) -> Embedder:
    """Raises FormatError for a file that is damaged, of something else, or of a newer edgelearn."""
    weights, metadata = safetensors.read_weights(path), safetensors.read_metadata(path)
    try:
        head = json.loads(metadata[_KIND])
        if head["version"] != _VERSION:
            raise FormatError(
                f"{path} holds an embedder in version {head['version']}; this edgelearn reads version {_VERSION}. "
                f"Update it, or train the network again."
            )
        network, front_end = Network.from_json(metadata["network"]), features.from_json(head["front_end"])
        seconds = float(head["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} holds no embedder, or is damaged ({error!r}). Give a file that edgelearn wrote."
        ) from None
    return Embedder(network, weights, front_end, seconds, device=device)
