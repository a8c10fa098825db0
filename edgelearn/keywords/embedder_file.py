"""Embedders in files: weights as safetensors, with the network and the front end as metadata."""

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
    """Serialise an embedder.

    Arguments:
    - `network`: its output is an embedding.
    - `weights`: arrays by name.
    - `front_end`, `seconds`: as in `Embedder`.
    - `notes`: more metadata, such as where the weights come from.

    Write the bytes with `edgelearn.atomic.write_bytes`.
    """
    head = {"version": _VERSION, "front_end": features.to_json(front_end), "seconds": seconds}
    described = {_KIND: json.dumps(head), "network": network.to_json()}
    return safetensors.to_bytes({name: weights[name] for name in network.parameters}, described | dict(notes or {}))


def load_embedder(path: str | Path, device: str | Device | None = None) -> Embedder:
    """Read an embedder from a file. `device`: part of a device's name (default: chosen).

    Raises FormatError for a file that is damaged, holds something else, or is of a newer version."""
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
