"""Embedders in files: edgelearn models (`interop.model_file`) with the front end of their features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgelearn.data.audio import features
from edgelearn.device import Device
from edgelearn.errors import FormatError
from edgelearn.interop import model_file
from edgelearn.interop.model_file import ModelFile

from .learners import DummyGenerator, Embedder, Head

P = TypeVar("P")


def save_embedder(path: str | Path, embedder: Embedder, notes: Mapping[str, str] | None = None) -> None:
    """Write an embedder, with its head and its generator of dummy prototypes, to a file in one step.

    Arguments:
    - `path`: the file.
    - `embedder`: its background, clips of other people, is not stored.
    - `notes`: more metadata, such as where the weights come from.

    Raises RunError if the file can't be written; a previous one then stays as it is.
    """
    preprocessing = {"front_end": features.to_json(embedder.front_end), "seconds": embedder.seconds}
    metadata, arrays = {"notes": dict(notes or {})}, {}
    for name, part in (("head", embedder.head), ("dummies", embedder.dummies)):
        if part is not None:
            arrays |= {f"{name}/{key}": value for key, value in vars(part).items() if isinstance(value, np.ndarray)}
            metadata[name] = {key: value for key, value in vars(part).items() if not isinstance(value, np.ndarray)}
    file = ModelFile(embedder.network, embedder.weights, preprocessing=preprocessing, metadata=metadata, arrays=arrays)
    model_file.write(path, file)


def load_embedder(path: str | Path, device: str | Device | None = None) -> Embedder:
    """Read an embedder from a file. `device`: part of a device's name (default: chosen).

    Raises FormatError for a file that is damaged, holds something else, or is of a newer version.
    """
    file = model_file.read(path)
    try:
        front_end = features.from_json(file.preprocessing["front_end"])
        seconds = float(file.preprocessing["seconds"])
        head, dummies = _part(file, "head", Head), _part(file, "dummies", DummyGenerator)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{path} holds a model but no embedder, or is damaged ({error!r}). Give a file that save_embedder wrote."
        ) from None
    return Embedder(file.network, file.weights, front_end, seconds, head, device, dummies)


def _part(file: ModelFile, name: str, kind: type[P]) -> P | None:
    """The head or the generator that a file holds, if any."""
    if name not in file.metadata:
        return None
    arrays = {key.partition("/")[2]: array for key, array in file.arrays.items() if key.startswith(f"{name}/")}
    return kind(**arrays, **file.metadata[name])
