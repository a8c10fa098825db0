"""Data of verification: users with recordings of their own, and others who take no part in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.features import LogMel
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.data.audio.synthetic import embedded_words
from edgelearn.data.cifar10 import SIZE, load_cifar10, standardized
from edgelearn.data.loading import load_images
from edgelearn.errors import DataError
from edgelearn.federated.verification import speaker_network
from edgelearn.graph import Network

from .networks import picture_network

FRONT_END = LogMel(window=640, hop=320, fft=1024)
LEAST_CLIPS = 10  # of a speaker
_SPLIT = 44  # separates this random stream from others of the same seed


@dataclass(frozen=True, eq=False)
class VerificationTask:
    """Users, their data, and a network.

    Arguments:
    - `name`, `description`: for readers.
    - `train`, `test`: arrays (n, …) of each user, to train and to test with.
    - `unseen`: array (n, …) of people who take no part in training.
    - `network`: from a number of outputs.
    """

    name: str
    description: str
    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    unseen: np.ndarray
    network: Callable[[int], Network]


def _speakers(clips: ClipDataset, name: str, held_out: float, tested: float, most: int, seed: int) -> VerificationTask:
    """Speakers with at least LEAST_CLIPS clips: a share of them is `held_out`, a share of others' clips `tested`."""
    rng = np.random.default_rng([seed, _SPLIT])
    speakers, counts = np.unique(clips.speakers, return_counts=True)
    people = rng.permutation(speakers[(counts >= LEAST_CLIPS) & (speakers != "")])
    if len(people) < 3:
        raise DataError(f"{clips.name} has {len(people)} speakers with {LEAST_CLIPS} clips; verification needs 3.")
    clips = clips.take(np.isin(clips.speakers, people))
    x = load_features(clips, FRONT_END)[..., None]
    count = max(1, round(held_out * len(people)))
    train, test = [], []
    for speaker in people[count:]:
        own = rng.permutation(np.flatnonzero(clips.speakers == speaker))[:most]
        share = max(1, round(tested * len(own)))
        test.append(x[own[:share]])
        train.append(x[own[share:]])
    unseen = [rng.permutation(np.flatnonzero(clips.speakers == speaker))[: len(test[0])] for speaker in people[:count]]
    description = f"{len(train)} speakers, {sum(map(len, train)):,} clips to train with; {count} speakers unseen"
    return VerificationTask(name, description, train, test, x[np.concatenate(unseen)], _speaker_network)


def _speaker_network(outputs: int) -> Network:
    return speaker_network((*FRONT_END.shape(FRONT_END.rate), 1), outputs)


def arabic(data: str | None = None, seed: int = 0) -> VerificationTask:
    """The Arabic speakers, a quarter of them unseen."""
    return _speakers(load_named("arabic_speech_commands", data), "arabic", 0.25, 0.25, 240, seed)


def english(data: str | None = None, seed: int = 0) -> VerificationTask:
    """The English speakers with at least ten clips, a quarter of them unseen."""
    clips = load_named("speech_commands_v0.02_test", data)
    words = [name for name in clips.class_names if name != "_silence_"]
    return _speakers(clips.only(words), "english", 0.25, 0.25, 240, seed)


def synthetic(data: str | None = None, seed: int = 0) -> VerificationTask:
    """Synthesised voices of the package."""
    return _speakers(embedded_words(6, 12, 4), "synthetic", 0.25, 0.25, 24, seed)


def cifar10(data: str | None = None, seed: int = 0) -> VerificationTask:
    """CIFAR-10 with one class a client; nothing is unseen."""
    arrays = {}
    for split in ("train", "test"):
        dataset = load_cifar10(split, data, download=False)
        pictures = load_images(dataset, range(len(dataset)), SIZE)
        arrays[split] = [standardized(pictures[dataset.labels == label]) for label in range(10)]
    count = sum(map(len, arrays["train"]))
    description = f"10 clients of one class each, {count:,} pictures to train with"
    nothing = np.empty((0, SIZE, SIZE, 3), np.float32)
    return VerificationTask("cifar10", description, arrays["train"], arrays["test"], nothing, picture_network)


TASKS = {"synthetic": synthetic, "arabic": arabic, "english": english, "cifar10": cifar10}
