"""What is trained from scratch: the same data, settings and seeds for the plain and for the reversible network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from edgelearn.data.cifar10 import SIZE, standardized
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.split import stratified_split
from edgelearn.errors import RunError
from edgelearn.experiments.quantised_backprop.tasks import Task
from edgelearn.experiments.quantised_backprop.tasks import cifar10 as from_cifar10
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
    dataset, pictures = _drawings()
    train, test = stratified_split(dataset.labels, seed=config.seed)
    source = PictureSource(len(dataset), SIZE, lambda indices, size: pictures[indices], standardized)
    data = {"origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
            "train": len(train), "test": len(test), "skipped": 0}  # fmt: skip
    weights = {"origin": "initialised", "description": f"Drawn from seed {config.seed}.", "sha256": ""}
    sides = ((Subset(source, part), dataset.labels[part]) for part in (train, test))
    model = Model(network, None, config.device, config.seed)
    return Task(model, *sides, lambda steps: Adam(2e-3), data, weights, 50, "batch")


@dataclass(frozen=True)
class TaskKind:
    """A task by name: what it is in words, its epochs and its micro-batch, its network, and how it is loaded."""

    title: str
    epochs: int
    micro_batch: int
    network: Callable[[], Network]
    load: Callable[[MemoryConfig, Network], Task]


TASKS = {
    "sample": TaskKind(
        "The embedded drawings of flowers, MobileNet V2 of a quarter of the width", 4, 50,
        lambda: mobilenet_v2_cifar(alpha=0.25, classes=5), drawings,
    ),
    "cifar10": TaskKind(
        "CIFAR-10 from scratch, MobileNet V2 of half the width", 30, 128,
        lambda: mobilenet_v2_cifar(alpha=0.5), lambda config, network: from_cifar10(config, network, 0.1),
    ),
}  # fmt: skip


def resolve(config: MemoryConfig) -> MemoryConfig:
    """With nothing left open: what a run records. Raises RunError for an unknown task."""
    if config.task not in TASKS:
        raise RunError(f"'{config.task}' is no task: choose {', '.join(TASKS)}.")
    kind = TASKS[config.task]
    return replace(config, epochs=config.epochs or kind.epochs, micro_batch=config.micro_batch or kind.micro_batch)


def load_task(config: MemoryConfig) -> Task:
    """The task of a configuration. Raises DataError where its data can't be had: nothing else is used instead."""
    kind = TASKS[config.task]
    network = kind.network()
    return kind.load(config, reversible(network) if config.reversible else network)
