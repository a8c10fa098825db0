"""The imported network of the twelve English classes, and its personalisation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.features import BC_RESNET
from edgelearn.data.audio.speech_commands import CLASSES, COMMANDS, load_named
from edgelearn.data.tfds import data_folder
from edgelearn.device import Device
from edgelearn.errors import DataError
from edgelearn.interop import bcresnet_npz
from edgelearn.keywords.learners import Embedder, Head, Learner
from edgelearn.models import bcresnet
from edgelearn.ops import Concatenate, Flatten, Mean

from .embedding.data import ENGLISH
from .networks import IN_DATA
from .personalisation import CANDIDATES, CrossValidation, PersonalisationReport, Protocol, average, run_selected

SEEDS = 5


def load_english(
    data: str | os.PathLike | None = None, device: str | Device | None = None, bands: bool = False
) -> Embedder:
    """BC-ResNet-1 with its head for `speech_commands.CLASSES`.

    Arguments:
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `device`: part of a device's name (default: chosen).
    - `bands`: append 100 values to the 32 of the embedding that the head reads: the last stage's means over time in
      each of its five frequency bands.

    Raises DataError if there is no data folder, FormatError for a file that is missing, damaged, or of another network.
    """
    folder = data_folder(data)
    if not folder:
        raise DataError(f"{IN_DATA} is needed. Set EDGELEARN_DATA to the folder that it lies in.")
    weights = bcresnet_npz.read_weights(Path(folder) / IN_DATA, bcresnet())
    network = bcresnet(classes=None)
    kernel = weights["classifier/kernel"]
    if bands:
        network.add("bands", Mean(axis=2), "stage4_block4_relu")
        network.add("bands_flat", Flatten())
        network.add("with_bands", Concatenate(), "pool", "bands_flat")
        kernel = np.pad(kernel, ((0, network.output.shape[0] - len(kernel)), (0, 0)))
    head = Head(kernel, weights["classifier/bias"])
    return Embedder(network, {name: weights[name] for name in network.parameters}, BC_RESNET, 1.0, head, device)


def english_users(
    data: str | os.PathLike | None = None, device: str | Device | None = None, seeds: int = SEEDS
) -> list[CrossValidation]:
    """Users of Speech Commands' test set, for each of `seeds`, which draw the background and the halves of the people.

    `data`, `device`, and errors: as in `load_english`.
    """
    clips = load_named(ENGLISH, data).only(CLASSES)
    features, embedder = load_features(clips, BC_RESNET), load_english(data, device, bands=True)
    words = tuple(CLASSES.index(word) for word in COMMANDS)
    return [CrossValidation(embedder, clips, features, Protocol(words, seed=seed)) for seed in range(seeds)]


def personalise_english(
    validations: Sequence[CrossValidation], shots: Sequence[int], candidates: Sequence[Learner] = CANDIDATES
) -> list[PersonalisationReport]:
    """Personalise the network for `english_users`: a report for each number of enrolled clips of a word in `shots`.

    Each user's settings are those of `candidates` that are best for other users. Reports are means over seeds.
    """
    return [average([run_selected(each, count, candidates) for each in validations]) for count in shots]
