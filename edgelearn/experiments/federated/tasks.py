"""Tasks of federations: examples, who has them, a network, and how a client trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.features import DS_CNN_MLPERF
from edgelearn.data.audio.speech_commands import COMMANDS, load_named
from edgelearn.data.audio.synthetic import embedded_words
from edgelearn.data.cifar10 import CLASSES, SIZE, load_cifar10, standardized
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.loading import load_images
from edgelearn.experiments.cifar10 import drawn_weights
from edgelearn.experiments.keywords.splits import hold_out
from edgelearn.experiments.task import Task, TaskKind
from edgelearn.graph import Network
from edgelearn.models import ds_cnn
from edgelearn.models.ds_cnn import Size
from edgelearn.ops import SGD
from edgelearn.train import Model, PictureSource

from .config import FederatedConfig
from .networks import lenet, with_group_normalization

_SMALL = Size(32, 2, (2, 2), (2, 1))  # a DS-CNN that learns in seconds


@dataclass
class FederatedTask(Task):
    """A loaded task.

    Arguments: those of Task, and
    - `groups`: name of the group that each example belongs to, such as its speaker; None: there are none.
    - `test_groups`: the same of the test data.
    """

    groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None


@dataclass(frozen=True)
class FederatedKind(TaskKind):
    """A task that can be loaded.

    Arguments: those of TaskKind, and
    - `rounds`, `clients`, `batch_size`, `partition`: used where the configuration has none.
    """

    rounds: int = 10
    clients: int = 10
    batch_size: int = 32
    partition: str = "iid"

    @property
    def settings(self) -> dict[str, Any]:
        """Values for settings that the configuration leaves open."""
        return {name: getattr(self, name) for name in ("rounds", "clients", "batch_size", "partition", "epochs")}


def _spoken(config: FederatedConfig, clips: ClipDataset, speakers: int, network: Callable[..., Network]) -> Task:
    """Words by some speakers to train with, the same words by `speakers` others to test with."""
    split = hold_out(clips, speakers=speakers, seed=config.seed)
    train, test = (_normalized(load_features(part, DS_CNN_MLPERF))[..., None] for part in (split.train, split.test))
    built = network(train.shape[1:], len(clips.class_names))
    if config.normalization == "group":
        built = with_group_normalization(built)
    data = {
        "origin": clips.origin, "description": clips.description, "classes": list(clips.class_names),
        "train": len(train), "test": len(test),
    }  # fmt: skip
    return FederatedTask(
        Model(built, None, config.device, config.seed), (train, split.train.labels), (test, split.test.labels),
        lambda steps: SGD(config.learning_rate or 0.2, momentum=0.9), data, drawn_weights(config.seed),
        config.batch_size or 0, "batch", groups=split.train.speakers, test_groups=split.test.speakers,
    )  # fmt: skip


def _normalized(features: np.ndarray) -> np.ndarray:
    """Each coefficient with mean 0 and deviation 1 over the time of a clip, which needs no other clip. `features`:
    (n, frames, coefficients)."""
    centred = features - features.mean(1, keepdims=True)
    return centred / (centred.std(1, keepdims=True) + np.float32(1e-3))


def _sample(config: FederatedConfig) -> Task:
    return _spoken(
        config, embedded_words(words=8, speakers=16, takes=5), 4,
        lambda shape, classes: ds_cnn(shape, _SMALL, classes, softmax=False),
    )  # fmt: skip


def _keywords(config: FederatedConfig) -> Task:
    clips = load_named("speech_commands_v0.02_test", config.data).only(COMMANDS)
    return _spoken(config, clips, 40, lambda shape, classes: ds_cnn(shape, "S", classes, softmax=False))


def _arabic(config: FederatedConfig) -> Task:
    clips = load_named("arabic_speech_commands", config.data)
    return _spoken(config, clips, 4, lambda shape, classes: ds_cnn(shape, "S", classes, softmax=False))


@lru_cache(maxsize=2)
def _cifar10_pictures(split: str, data: str | None, download: bool) -> tuple[ImageDataset, np.ndarray]:
    dataset = load_cifar10(split, data, download)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def cifar10_pictures(config: FederatedConfig) -> tuple[tuple, tuple, dict]:
    """Training data, test data and what a run's record says of them; no augmentation."""
    sides = [_cifar10_pictures(split, config.data, config.download) for split in ("train", "test")]
    (train, _), (test, _) = sides
    data = {"origin": train.origin, "description": train.description, "classes": list(CLASSES), "train": len(train),
            "test": len(test)}  # fmt: skip

    def side(dataset: ImageDataset, pictures: np.ndarray) -> tuple[PictureSource, np.ndarray]:
        source = PictureSource(len(pictures), SIZE, lambda indices, size: pictures[indices], standardized)
        return source, dataset.labels

    return side(*sides[0]), side(*sides[1]), data


def _cifar10(config: FederatedConfig) -> Task:
    """Flower's `niid_bench`: no augmentation, momentum, a little weight decay."""
    train, test, data = cifar10_pictures(config)
    return FederatedTask(
        Model(lenet(), None, config.device, config.seed), train, test,
        lambda steps: SGD(config.learning_rate or 0.01, weight_decay=1e-5, momentum=0.9), data,
        drawn_weights(config.seed), config.batch_size or 0, "batch",
    )  # fmt: skip


TASKS: dict[str, FederatedKind] = {
    "sample": FederatedKind(
        "The embedded words, a small DS-CNN; a client is a speaker", 2, 16, _sample, 12, 12, 16, "group"
    ),
    "keywords": FederatedKind(
        "Ten English words of Speech Commands, DS-CNN-S; a client is a speaker or more", 1, 16, _keywords, 50, 100, 16,
        "group",
    ),
    "keywords-arabic": FederatedKind(
        "24 Arabic words, DS-CNN-S; a client is a speaker", 1, 16, _arabic, 30, 20, 16, "group"
    ),
    "cifar10": FederatedKind(
        "CIFAR-10, LeNet, with the settings of Flower's niid_bench", 10, 64, _cifar10, 50, 10, 64, "dirichlet"
    ),
}  # fmt: skip
