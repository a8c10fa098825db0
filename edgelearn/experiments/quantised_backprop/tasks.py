"""What is trained: a network, its data and its settings, the same for every precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from edgelearn.data.augment import FlipAndCrop
from edgelearn.data.cifar10 import SIZE, load_cifar10, standardized
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.preprocess import normalize
from edgelearn.errors import DataError, RunError
from edgelearn.experiments.flowers import FlowersConfig, FlowersJob
from edgelearn.graph import Network
from edgelearn.models import mobilenet_v2_cifar, resnet18_cifar
from edgelearn.ops import SGD, Adam, Optimizer
from edgelearn.train import CosineDecay, Model, PictureSource, Subset, VariedSource
from edgelearn.train.sources import Source

from .config import PrecisionConfig


@dataclass
class Task:
    """Data on both sides of a split, a model on its device, and how it is trained. `data` and `weights` are what a
    run records of where these come from."""

    model: Model
    train: tuple[Source, np.ndarray]
    test: tuple[Source, np.ndarray]
    optimizer: Callable[[int], Optimizer]  # for so many updates in all
    data: dict
    weights: dict
    batch_size: int
    batchnorm: str = "kept"

    def steps(self, epochs: int) -> int:
        """Updates of so many epochs."""
        return epochs * ceil(len(self.train[1]) / self.batch_size)


# Decoded once for all trainings of a sweep.


@lru_cache(maxsize=1)
def _flowers(sample: bool, data: str | None, download: bool, size: int) -> np.ndarray:
    dataset = load_flowers(data=data, download=download, embedded=sample)
    return load_images(dataset, range(len(dataset)), size)


@lru_cache(maxsize=2)
def _cifar10(split: str, data: str | None, download: bool) -> tuple[ImageDataset, np.ndarray]:
    dataset = load_cifar10(split, data, download)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def flowers(
    config: PrecisionConfig, sample: bool, trainable: tuple[str, ...], batch_size: int, optimizer: Optimizer
) -> Task:
    """Fine-tuning as edgelearn.experiments.flowers has it, without the cache of features, since quantised ones change
    as ranges move; all pictures are decoded beforehand."""
    settings = FlowersConfig(
        data=config.data, sample=sample, download=config.download, trainable=trainable, seed=config.seed,
        device=config.device,
    )  # fmt: skip
    job = FlowersJob.load(settings)
    if (job.dataset.origin == "embedded sample") != sample:
        raise DataError(
            f"The task '{config.task}' needs what can't be had here: {job.dataset.description} Set EDGELEARN_DATA to a "
            f"folder that has it, or take the task 'sample'."
        )
    count, size = len(job.dataset), job.pretrained.size
    decoded = _flowers(sample, config.data, config.download, size)
    pictures = PictureSource(count, size, lambda indices, size: decoded[indices], normalize)
    labels, recorded = job.labels, job.origins()
    return Task(
        job.model,
        (Subset(pictures, job.train_indices), labels[0]),
        (Subset(pictures, job.test_indices), labels[1]),
        lambda steps: optimizer,
        recorded["data"],
        recorded["weights"],
        batch_size,
    )


def cifar10(config: PrecisionConfig, network: Network, learning_rate: float) -> Task:
    """From scratch, as ResNets are trained on CIFAR (He et al. 2016, section 4.2) but along a cosine: mini-batches of
    128, mirrored and shifted, momentum 0.9, weight decay 5e-4, the rate up in the first epoch and down to 0."""
    (train, train_pictures), (test, test_pictures) = (
        _cifar10(split, config.data, config.download) for split in ("train", "test")
    )
    data = {
        "origin": train.origin, "description": train.description, "classes": list(train.class_names),
        "train": len(train), "test": len(test), "skipped": 0,
    }  # fmt: skip
    weights = {"origin": "initialised", "description": f"Drawn from seed {config.seed}.", "sha256": ""}
    warmup = ceil(len(train) / 128)

    def optimizer(steps: int) -> Optimizer:
        rate = CosineDecay(learning_rate, max(1, steps - warmup), warmup_steps=warmup)
        return SGD(rate, momentum=0.9, weight_decay=5e-4)

    return Task(
        Model(network, None, config.device, config.seed),
        (VariedSource(train_pictures, FlipAndCrop(config.seed), standardized), train.labels),
        (PictureSource(len(test), SIZE, lambda indices, size: test_pictures[indices], standardized), test.labels),
        optimizer,
        data,
        weights,
        128,
        "batch",
    )


@dataclass(frozen=True)
class TaskKind:
    """A task by name: what it is in words, its epochs and its micro-batch unless a configuration has its own, and how
    it is loaded."""

    title: str
    epochs: int
    micro_batch: int
    load: Callable[[PrecisionConfig], Task]


LAST, ALL = ("conv_pw_13", "dense"), ("*",)
TASKS: dict[str, TaskKind] = {
    "sample": TaskKind(
        "The embedded drawings of flowers, last layers of MobileNet V1 0.25/96", 6, 50,
        lambda config: flowers(config, True, LAST, 50, SGD(0.01, momentum=0.9)),
    ),
    "sample-all": TaskKind(
        "The embedded drawings of flowers, all layers of MobileNet V1 0.25/96", 6, 50,
        lambda config: flowers(config, True, ALL, 50, Adam(3e-4)),
    ),
    "flowers": TaskKind(
        "Photographs of flowers, last layers of MobileNet V1 1.0/224", 20, 15,
        lambda config: flowers(config, False, LAST, 163, SGD(0.003, momentum=0.9)),
    ),
    "flowers-all": TaskKind(
        "Photographs of flowers, all layers of MobileNet V1 1.0/224", 5, 16,
        lambda config: flowers(config, False, ALL, 32, Adam(1e-4)),
    ),
    "cifar10-resnet18": TaskKind(
        "CIFAR-10 from scratch, ResNet-18 of half the width", 8, 128,
        lambda config: cifar10(config, resnet18_cifar(alpha=0.5), 0.1),
    ),
    "cifar10-mobilenetv2": TaskKind(
        "CIFAR-10 from scratch, MobileNet V2 of half the width", 12, 128,
        lambda config: cifar10(config, mobilenet_v2_cifar(alpha=0.5), 0.1),
    ),
}  # fmt: skip


def resolve(config: PrecisionConfig) -> PrecisionConfig:
    """With nothing left open: what a run records. Raises RunError for an unknown task."""
    if config.task not in TASKS:
        raise RunError(f"'{config.task}' is no task: choose {', '.join(TASKS)}.")
    kind = TASKS[config.task]
    return replace(config, epochs=config.epochs or kind.epochs, micro_batch=config.micro_batch or kind.micro_batch)


def load_task(config: PrecisionConfig) -> Task:
    """The task of a configuration. Raises DataError where its data can't be had: nothing else is used instead."""
    return TASKS[config.task].load(config)
