"""Tasks to train: a network, its data and its settings, the same for every precision."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.preprocess import normalize
from edgelearn.errors import DataError
from edgelearn.experiments.cifar10 import cifar10
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment
from edgelearn.experiments.task import Task, TaskKind
from edgelearn.experiments.trained import Pictures
from edgelearn.models import mobilenet_v2_cifar, resnet18_cifar
from edgelearn.ops import SGD, Adam, Optimizer
from edgelearn.train import PictureSource, Subset

from .config import PrecisionConfig


@lru_cache(maxsize=1)
def _flowers(sample: bool, data: str | None, download: bool, size: int) -> np.ndarray:
    """All pictures, decoded once for all trainings of a comparison."""
    dataset = load_flowers(data=data, download=download, embedded=sample)
    return load_images(dataset, range(len(dataset)), size)


def flowers(
    config: PrecisionConfig, sample: bool, trainable: tuple[str, ...], batch_size: int, optimizer: Optimizer
) -> Task:
    """Fine-tune as edgelearn.experiments.flowers does, with all pictures decoded beforehand and without a feature
    cache, since quantized features change with their ranges."""
    settings = FlowersConfig(
        data=config.data, sample=sample, download=config.download, trainable=trainable, seed=config.seed,
        device=config.device,
    )  # fmt: skip
    experiment = FlowersExperiment.load(settings)
    if (experiment.dataset.origin == "embedded sample") != sample:
        raise DataError(
            f"The task '{config.task}' needs data that is missing: {experiment.dataset.description} Set EDGELEARN_DATA "
            f"to a folder that has it, or choose the task 'sample'."
        )
    count, size = len(experiment.dataset), experiment.pretrained.size
    decoded = _flowers(sample, config.data, config.download, size)
    pictures = PictureSource(count, size, lambda indices, size: decoded[indices], normalize)
    labels, recorded = experiment.labels, experiment.origins()
    return Task(
        experiment.model,
        (Subset(pictures, experiment.train_indices), labels[0]),
        (Subset(pictures, experiment.test_indices), labels[1]),
        lambda steps: optimizer,
        recorded["data"],
        recorded["weights"],
        batch_size,
        pictures=Pictures(size),
    )


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
