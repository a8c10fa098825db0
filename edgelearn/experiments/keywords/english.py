"""The imported network of twelve English classes, as an embedder with the classifier that it was trained with."""

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

from .personal import CANDIDATES, Personalisation, Protocol, average, personalise_chosen
from .personal.trial import Trial

CLIPS, WEIGHTS = "speech_commands_v0.02_test", "weights/bcresnet1_speech_commands.npz"
SEEDS = 5


def load_twelve(
    data: str | os.PathLike | None = None, device: str | Device | None = None, bands: bool = False
) -> Embedder:
    """BC-ResNet-1 with the weights in `data`, or else in EDGELEARN_DATA. Its head tells speech_commands.CLASSES apart.

    bands: whether embeddings have, behind the 32 values that the head reads, 100 that are still told apart by
        frequency: the means over time of what the last stage found in each of five bands.

    Raises DataError when neither is set, FormatError for a file that is missing, damaged, or of another network.
    """
    named = data_folder(data)
    if not named:
        raise DataError(f"Nothing says where {WEIGHTS} is. Set EDGELEARN_DATA to the folder that it lies in.")
    weights = bcresnet_npz.read_weights(Path(named) / WEIGHTS, bcresnet())
    network = bcresnet(classes=None)
    kernel = weights["classifier/kernel"]
    if bands:
        network.add("bands", Mean(axis=2), "stage4_block4_relu")
        network.add("bands_flat", Flatten())
        network.add("with_bands", Concatenate(), "pool", "bands_flat")
        kernel = np.pad(kernel, ((0, network.output.shape[0] - len(kernel)), (0, 0)))
    head = Head(kernel, weights["classifier/bias"])
    return Embedder(network, {name: weights[name] for name in network.parameters}, BC_RESNET, 1.0, head, device)


def personalise_english(
    shots: Sequence[int],
    data: str | os.PathLike | None = None,
    device: str | Device | None = None,
    seeds: int = SEEDS,
    candidates: Sequence[Learner] = CANDIDATES,
) -> list[Personalisation]:
    """Users of Speech Commands' test set, in `data` or else EDGELEARN_DATA, who have five clips of a command or more,
    enrolled with up to so many `shots` of each, by that of `candidates` which is best for other users. Means over
    `seeds`, which draw who is in a user's background, and who chooses for whom. Raises DataError as load_twelve."""
    clips = load_named(CLIPS, data).only(CLASSES)
    features, embedder = load_features(clips, BC_RESNET), load_twelve(data, device, bands=True)
    words = tuple(CLASSES.index(word) for word in COMMANDS)
    trials = [Trial(embedder, clips, features, Protocol(words, seed=seed)) for seed in range(seeds)]
    return [average([personalise_chosen(trial, count, candidates) for trial in trials]) for count in shots]
