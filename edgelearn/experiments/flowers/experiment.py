"""Fine-tuning on flowers. The command and the notebooks call the same steps."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

import numpy as np

from edgelearn.data.dataset import ImageDataset
from edgelearn.data.drawn_flowers import embedded_flowers
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.preprocess import normalize
from edgelearn.data.split import stratified_split
from edgelearn.data.subfolders import skipped_lines
from edgelearn.errors import DownloadError
from edgelearn.experiments.trained import Pictures
from edgelearn.experiments.transfer import TransferExperiment
from edgelearn.ops import Optimizer, SoftmaxCrossEntropy
from edgelearn.train import Model, PictureSource, Subset

from .config import ACCURACY, FlowersConfig
from .weights import Pretrained, load_pretrained


class FlowersExperiment(TransferExperiment[FlowersConfig]):
    """Pictures, network and model of one configuration. `run` does everything; a notebook can call single steps.

    Arguments:
    - `config`: settings of the run.
    - `dataset`: the pictures.
    - `pretrained`: the network and its weights.
    """

    kind, command, config_type = "flowers", "edgelearn flowers", FlowersConfig

    def __init__(self, config: FlowersConfig, dataset: ImageDataset, pretrained: Pretrained) -> None:
        self.config, self.dataset, self.pretrained = config, dataset, pretrained
        network = pretrained.network
        network.freeze().unfreeze(*config.trainable)
        self.model = Model(network, pretrained.weights, config.device, config.seed)
        self.model.compile(self.resolved_optimizer, SoftmaxCrossEntropy(config.label_smoothing))
        self.train_indices, self.test_indices = stratified_split(dataset.labels, 0.8, config.seed)
        pictures = PictureSource(len(dataset), pretrained.size, self._load, normalize)
        self.train = Subset(pictures, self.train_indices)
        self.test = Subset(pictures, self.test_indices)
        self.train_labels, self.test_labels = dataset.labels[self.train_indices], dataset.labels[self.test_indices]
        self.class_names, self.preprocessing = dataset.class_names, asdict(Pictures(pretrained.size))

    @classmethod
    def load(cls, config: FlowersConfig) -> FlowersExperiment:
        """Load pictures and weights. Without a network connection the embedded sample is used for both, and
        `dataset.description` says so; a source that the configuration names is never replaced."""
        dataset = load_flowers(config.images, config.data, config.download, config.sample)
        sample = dataset.origin == "embedded sample"
        load = partial(load_pretrained, seed=config.seed, weights=config.weights, data=config.data)
        try:
            pretrained = load(len(dataset.class_names), sample=sample and not config.weights, download=config.download)
        except DownloadError as error:
            if dataset.origin != "tfds":
                raise
            dataset = embedded_flowers()
            why = f"because the photographs' network is not available: {str(error).split('. ')[0]}."
            dataset = replace(dataset, description=f"{dataset.description.rstrip('.')}, {why}")
            pretrained = load(len(dataset.class_names), sample=True)
        return cls(config.resolve(dataset.origin == "embedded sample"), dataset, pretrained)

    def _load(self, indices: np.ndarray, size: int) -> np.ndarray:
        return load_images(self.dataset, indices.tolist(), size)

    @property
    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the training and of the test pictures, int."""
        return self.train_labels, self.test_labels

    @property
    def resolved_optimizer(self) -> Optimizer:
        return self.config.make_optimizer()

    def origins(self) -> dict:
        return {
            "data": {"origin": self.dataset.origin, "description": self.dataset.description,
                     "classes": list(self.dataset.class_names), "train": len(self.train), "test": len(self.test),
                     "skipped": len(self.dataset.skipped)},
            "weights": {"origin": self.pretrained.origin, "description": self.pretrained.description,
                        "sha256": self.pretrained.sha256},
        }  # fmt: skip

    def sources(self) -> list[str]:
        skipped = skipped_lines(self.dataset.skipped)
        if skipped:
            skipped.append(f"  {len(skipped)} files skipped")
        return [self.dataset.description, *skipped, f"Network: {self.pretrained.description}"]

    @property
    def published(self) -> bool:
        """True for the experiment with published results: the flower photographs and the large network."""
        return self.dataset.origin in ("EDGELEARN_DATA", "tfds") and self.pretrained.origin != "package"

    @property
    def reference(self) -> dict[str, float] | None:
        return {"published": ACCURACY["after"]} if self.published else None

    @property
    def notes(self) -> list[str]:
        return ["Published by Qualcomm: 147/736 = 19.97% before, 670/736 = 91.03% after"] if self.published else []
