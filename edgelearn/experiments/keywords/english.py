"""The imported network of twelve English classes, as an embedder with the classifier that it was trained with."""

from __future__ import annotations

import os
from pathlib import Path

from edgelearn.data.audio.features import BC_RESNET
from edgelearn.data.tfds import data_folder
from edgelearn.device import Device
from edgelearn.errors import DataError
from edgelearn.io import bcresnet_npz
from edgelearn.models import bcresnet

from .learners import Embedder, Head

WEIGHTS = "weights/bcresnet1_speech_commands.npz"


def load_twelve(data: str | os.PathLike | None = None, device: str | Device | None = None) -> Embedder:
    """BC-ResNet-1 with the weights in `data`, or else in EDGELEARN_DATA. Its head tells speech_commands.CLASSES apart.

    Raises DataError when neither is set, FormatError for a file that is missing, damaged, or of another network.
    """
    named = data_folder(data)
    if not named:
        raise DataError(f"Nothing says where {WEIGHTS} is. Set EDGELEARN_DATA to the folder that it lies in.")
    weights = bcresnet_npz.read_weights(Path(named) / WEIGHTS, bcresnet())
    network = bcresnet(classes=None)
    head = Head(weights["classifier/kernel"], weights["classifier/bias"])
    return Embedder(network, {name: weights[name] for name in network.parameters}, BC_RESNET, 1.0, head, device)
