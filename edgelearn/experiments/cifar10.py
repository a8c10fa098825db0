"""CIFAR-10 from scratch."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import numpy as np

from edgelearn.data.augment import FlipAndCrop
from edgelearn.data.cifar10 import DEVIATION, MEAN, SIZE, load_cifar10, standardized
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.loading import load_images
from edgelearn.graph import Network
from edgelearn.ops import SGD, Optimizer
from edgelearn.train import CosineDecay, Model, PictureSource, VariedSource

from .config import TrainingConfig
from .task import Task
from .trained import Pictures

BATCH_SIZE = 128


@lru_cache(maxsize=2)
def _decoded(split: str, data: str | None, download: bool) -> tuple[ImageDataset, np.ndarray]:
    """All pictures, decoded once for all trainings of a comparison."""
    dataset = load_cifar10(split, data, download)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def cifar10(config: TrainingConfig, network: Network, learning_rate: float) -> Task:
    """Train `network` as ResNets are trained on CIFAR (He et al. 2016, section 4.2), but with a cosine schedule:
    mini-batches of 128, mirrored and shifted pictures, momentum 0.9, weight decay 5e-4. `learning_rate` is reached
    after the first epoch."""
    (train, train_pictures), (test, test_pictures) = (
        _decoded(split, config.data, config.download) for split in ("train", "test")
    )
    data = {
        "origin": train.origin, "description": train.description, "classes": list(train.class_names),
        "train": len(train), "test": len(test), "skipped": 0,
    }  # fmt: skip
    warmup = ceil(len(train) / BATCH_SIZE)

    def optimizer(steps: int) -> Optimizer:
        rate = CosineDecay(learning_rate, max(1, steps - warmup), warmup_steps=warmup)
        return SGD(rate, momentum=0.9, weight_decay=5e-4)

    return Task(
        Model(network, None, config.device, config.seed),
        (VariedSource(train_pictures, FlipAndCrop(config.seed), standardized), train.labels),
        (PictureSource(len(test), SIZE, lambda indices, size: test_pictures[indices], standardized), test.labels),
        optimizer,
        data,
        drawn_weights(config.seed),
        BATCH_SIZE,
        "batch",
        Pictures(SIZE, MEAN, DEVIATION),
    )


def drawn_weights(seed: int) -> dict:
    """Entry of the run's record on weights that come from its seed."""
    return {"origin": "initialised", "description": f"Drawn from seed {seed}.", "sha256": ""}
