"""Tasks to train from scratch: the same data, settings and seeds for the plain and for the reversible network."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from edgelearn.data.cifar10 import SIZE, standardized
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.split import stratified_split
from edgelearn.experiments.cifar10 import cifar10, drawn_weights
from edgelearn.experiments.task import Task, TaskKind
from edgelearn.graph import Network, reversible
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.ops import Adam
from edgelearn.train import Model, PictureSource, Subset

from .config import MemoryConfig


@lru_cache(maxsize=1)
def _drawings() -> tuple[ImageDataset, np.ndarray]:
    dataset = load_flowers(embedded=True)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def drawings(config: MemoryConfig, network: Network) -> Task:
    """The embedded drawings of flowers at CIFAR's size."""
    dataset, images = _drawings()
    train, test = stratified_split(dataset.labels, seed=config.seed)
    source = PictureSource(len(dataset), SIZE, lambda indices, size: images[indices], standardized)
    data = {"origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
            "train": len(train), "test": len(test), "skipped": 0}  # fmt: skip
    model = Model(network, None, config.device, config.seed)
    train_side, test_side = ((Subset(source, part), dataset.labels[part]) for part in (train, test))
    weights = drawn_weights(config.seed)
    return Task(model, train_side, test_side, lambda steps: Adam(2e-3), data, weights, 50, "batch")


def _network(config: MemoryConfig, **settings) -> Network:
    network = mobilenet_v2_cifar(**settings)
    return reversible(network) if config.reversible else network


TASKS: dict[str, TaskKind] = {
    "sample": TaskKind(
        "The embedded drawings of flowers, MobileNet V2 of a quarter of the width", 4, 50,
        lambda config: drawings(config, _network(config, alpha=0.25, classes=5)),
    ),
    "cifar10": TaskKind(
        "CIFAR-10 from scratch, MobileNet V2 of half the width", 30, 128,
        lambda config: cifar10(config, _network(config, alpha=0.5), 0.1),
    ),
}  # fmt: skip
