"""The imported network of twelve English classes, as an embedder with the classifier that it was trained with.

python -m edgelearn.experiments.keywords.english     what a user's own clips are worth, with EDGELEARN_DATA set
"""

from __future__ import annotations

import os
from pathlib import Path

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.features import BC_RESNET
from edgelearn.data.audio.speech_commands import CLASSES, COMMANDS, load_named
from edgelearn.data.tfds import data_folder
from edgelearn.device import Device
from edgelearn.errors import DataError
from edgelearn.io import bcresnet_npz
from edgelearn.models import bcresnet

from .learners import Embedder, FineTune, Head, Learner
from .personal import Personalisation, Protocol, personalise, to_table

CLIPS, WEIGHTS = "speech_commands_v0.02_test", "weights/bcresnet1_speech_commands.npz"


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


# What a device would do at an enrolment: a fraction of a second, and 1.5 KiB to keep.
PERSONAL = FineTune("head", epochs=200, learning_rate=0.3, rehearsal=0.3)


def personalise_english(
    shots: int, learner: Learner = PERSONAL, data: str | os.PathLike | None = None, seed: int = 0
) -> Personalisation:
    """Users of Speech Commands' test set, in `data` or else EDGELEARN_DATA, who have five clips of a command or more,
    enrolled with up to `shots` of each. `seed` draws who is in a user's background. Raises DataError as load_twelve."""
    clips = load_named(CLIPS, data).only(CLASSES)
    protocol = Protocol(tuple(CLASSES.index(word) for word in COMMANDS), seed=seed)
    return personalise(learner, load_twelve(data), clips, load_features(clips, BC_RESNET), protocol, shots)


if __name__ == "__main__":
    print(to_table([personalise_english(shots) for shots in (1, 3, 5)]))
