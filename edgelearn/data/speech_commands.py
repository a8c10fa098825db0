"""Speech Commands (Warden 2018, arXiv:1804.03209): one-second clips of 35 English words by 2,618 speakers.

`load_named` reads its folder, `load_speech_commands` the twelve classes of TensorFlow Datasets.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError

from .audio import SILENCE, UNKNOWN, ClipDataset, load_folder
from .tfds import Collection, data_folder, fetch

COMMANDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
CLASSES = (SILENCE, UNKNOWN, *COMMANDS)  # sorted, like folders and BC-ResNet's published labels
SPEECH_COMMANDS = Collection(
    name="speech_commands",
    version="0.0.3",
    url="http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    noun="clips",
    remedy="Set EDGELEARN_DATA to a folder that has tensorflow_datasets/speech_commands, give a folder with a "
    "subfolder of recordings for each word, or use the embedded sample.",
    feature="audio",
)


def load_named(name: str, data: str | os.PathLike | None = None) -> ClipDataset:
    """Load the folder `name`, such as "speech_commands_v0.02", in `data` or else in EDGELEARN_DATA (see load_folder).

    Raises DataError if neither is set, there is no such folder, or it can't be used.
    """
    named = data_folder(data)
    if not named:
        raise DataError(
            f"Where {name} is, is unknown: set EDGELEARN_DATA to the folder that contains it, or give that folder."
        )
    return replace(load_folder(Path(named) / name), origin="EDGELEARN_DATA")


def load_speech_commands(
    split: str = "train", data: str | os.PathLike | None = None, download: bool = True
) -> ClipDataset:
    """Load the twelve classes of Speech Commands, without speakers. The 85,511 clips of "train" take 2.7 GB of memory.

    Arguments:
    - `split`: "train" (default), "validation" or "test".
    - `data`: folder with the data (default: EDGELEARN_DATA, else TensorFlow Datasets' own folder).
    - `download`: download missing data to TensorFlow Datasets' own folder (default True).

    Raises DownloadError (a DataError) within about ten seconds without a network, DataError if a named folder doesn't
    have the data, they are damaged, or a package is missing. No other data set is used instead.
    """
    found = fetch(SPEECH_COMMANDS, data, download, split)
    labels = _in_order_of(CLASSES, found.class_names)[found.labels]
    return ClipDataset(
        name=SPEECH_COMMANDS.name,
        origin=found.origin,
        description=found.description,
        class_names=CLASSES,
        labels=labels,
        speakers=np.full(len(labels), ""),
        items=[np.frombuffer(value, "<i2") for value in found.values],
    )


def _in_order_of(names: tuple[str, ...], others: tuple[str, ...]) -> np.ndarray:
    """Index in `names` of each of `others`: TensorFlow Datasets has silence and unknown words last."""
    if sorted(names) != sorted(others):
        raise DataError(
            f"The prepared speech_commands has the classes {', '.join(others)}, not {', '.join(names)}. Prepare "
            f"version {SPEECH_COMMANDS.version} again."
        )
    return np.array([names.index(name) for name in others], np.int32)
