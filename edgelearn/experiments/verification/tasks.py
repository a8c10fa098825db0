"""Tasks of verification: users with recordings of their own, and people who take no part in training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgelearn.data.audio.augment import SpecAugment
from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.features import LogMel
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.data.audio.synthetic import embedded_words
from edgelearn.errors import DataError
from edgelearn.experiments.cifar10 import drawn_weights
from edgelearn.experiments.federated.tasks import FederatedKind, FederatedTask, cifar10_pictures
from edgelearn.federated.verification import speaker_network
from edgelearn.ops import SGD
from edgelearn.train import Model, VariedSource
from edgelearn.train.sources import Source

from .config import VerificationConfig
from .networks import picture_network

FRONT_END = LogMel(window=640, hop=320, fft=1024)
LEAST_CLIPS = 10  # of a speaker
_HELD_OUT = _TESTED = 0.25  # of the speakers, and of the others' clips
_SPLIT = 44  # separates this random stream from others of the same seed


def _speakers(config: VerificationConfig, clips: ClipDataset, most: int = 240) -> FederatedTask:
    """Speakers with at least LEAST_CLIPS clips, of which `most` are taken. A share of the speakers takes no part; a
    share of the others' clips is for the test."""
    rng = np.random.default_rng([config.seed, _SPLIT])
    speakers, counts = np.unique(clips.speakers, return_counts=True)
    people = rng.permutation(speakers[(counts >= LEAST_CLIPS) & (speakers != "")])
    count, users = max(1, round(_HELD_OUT * len(people))), config.clients or 0
    if len(people) < count + users:
        raise DataError(
            f"{clips.name} has {len(people)} speakers with {LEAST_CLIPS} clips. {count} of them are held out, so there "
            f"are {max(0, len(people) - count)} users, not {users}."
        )
    clips = clips.take(np.isin(clips.speakers, people))
    x = load_features(clips, FRONT_END)[..., None]
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for speaker in people[count : count + users]:
        own = rng.permutation(np.flatnonzero(clips.speakers == speaker))[:most]
        share = max(1, round(_TESTED * len(own)))
        test.append(own[:share])
        train.append(own[share:])
    unseen = [rng.permutation(np.flatnonzero(clips.speakers == speaker))[: len(test[0])] for speaker in people[:count]]
    places = np.concatenate(train), np.concatenate([*test, *unseen])
    owners = np.repeat(range(users), list(map(len, train)))
    tested = np.repeat([*range(users), *[-1] * count], list(map(len, [*test, *unseen])))
    description = f"{users} speakers, {len(owners):,} clips to train with; {count} speakers unseen"
    data = {
        "origin": clips.origin, "description": description, "classes": [str(name) for name in people[count:][:users]],
        "train": len(owners), "test": len(tested),
    }  # fmt: skip
    network = speaker_network((*FRONT_END.shape(FRONT_END.rate), 1), config.make_strategy().size)
    return FederatedTask(
        Model(network, None, config.device, config.seed), (_varied(config, x[places[0]]), owners),
        (x[places[1]], tested),
        lambda steps: SGD(config.learning_rate or 1.0), data, drawn_weights(config.seed), config.batch_size or 0,
        "batch", groups=people[count:][owners],
    )  # fmt: skip


def _varied(config: VerificationConfig, x: np.ndarray) -> Source:
    """Recordings (n, frames, bands, 1) as they are, or masked anew in each round."""
    if not config.augment:
        return x
    masks = SpecAugment(config.seed, frames=8, bands=6)
    return VariedSource(x, lambda some, indices, epoch: masks(some[..., 0], indices, epoch)[..., None], np.asarray)


def _arabic(config: VerificationConfig) -> FederatedTask:
    return _speakers(config, load_named("arabic_speech_commands", config.data))


def _english(config: VerificationConfig) -> FederatedTask:
    clips = load_named("speech_commands_v0.02_test", config.data)
    return _speakers(config, clips.only([name for name in clips.class_names if name != "_silence_"]))


def _sample(config: VerificationConfig) -> FederatedTask:
    return _speakers(config, embedded_words(6, 12, 8), 48)


def _cifar10(config: VerificationConfig) -> FederatedTask:
    train, test, data = cifar10_pictures(config)
    network = picture_network(config.make_strategy().size)
    return FederatedTask(
        Model(network, None, config.device, config.seed), train, test, lambda steps: SGD(config.learning_rate or 1.0),
        data, drawn_weights(config.seed), config.batch_size or 0, "batch",
    )  # fmt: skip


def _kind(title: str, load: Callable, rounds: int, users: int, recordings: int) -> FederatedKind:
    return FederatedKind(title, 1, recordings, load, rounds, users, recordings, "labels")


TASKS: dict[str, FederatedKind] = {
    "sample": _kind("Synthesised voices of the package", _sample, 300, 9, 12),
    "arabic": _kind("The Arabic speakers, a quarter of them unseen", _arabic, 200, 18, 12),
    "english": _kind("English speakers with at least ten clips, a quarter of them unseen", _english, 1000, 91, 8),
    "cifar10": _kind("CIFAR-10 with one class a client; nothing is unseen", _cifar10, 300, 10, 32),
}
