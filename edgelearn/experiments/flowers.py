"""Fine-tuning MobileNet V1 on flowers: Qualcomm's published example of on-device training.

    edgelearn flowers            # the published job
    edgelearn flowers --sample   # the same job small, on drawings; needs no files and no network

Guide: docs/guides/fine-tune.md. Figures: docs/results/flowers.md.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from edgelearn.data.draws import stratified_split
from edgelearn.data.files import skipped_lines
from edgelearn.data.flowers import embedded_flowers, load_flowers
from edgelearn.data.pictures import ImageDataset, load_images, normalize
from edgelearn.errors import DownloadError, FormatError
from edgelearn.experiments.config import DATA, DOWNLOAD, setting
from edgelearn.experiments.finetune import TransferConfig, TransferExperiment
from edgelearn.experiments.tasks import Pictures
from edgelearn.graph import Network
from edgelearn.interop import keras_h5, safetensors
from edgelearn.models import mobilenet_v1
from edgelearn.ops import Optimizer, SoftmaxCrossEntropy
from edgelearn.train import Model, PictureSource, Subset

ACCURACY = {"before": 147 / 736, "after": 670 / 736}  # published by Qualcomm
PUBLISHED = {"epochs": 100, "batch_size": 163, "micro_batch": 15, "learning_rate": 0.003}
SAMPLE_SETTINGS = {"epochs": 20, "batch_size": 50, "micro_batch": 50, "learning_rate": 0.01}


@dataclass(frozen=True)
class FlowersConfig(TransferConfig):
    """Fine-tuning of MobileNet V1. Where `epochs`, `batch_size`, `micro_batch` or `learning_rate` are None, the
    published values hold, or with the embedded sample those of SAMPLE. `images`, `data` and `sample` choose the
    pictures (see edgelearn.data.flowers.load_flowers).

    Raises ConfigError for an invalid value.
    """

    images: str | None = setting(None, "your own pictures: a subfolder a class, JPEG or PNG, any size", metavar="DIR")
    data: str | None = setting(None, DATA, metavar="DIR")
    sample: bool = setting(False, "the embedded sample: drawn flowers and a small network")
    download: bool = setting(True, DOWNLOAD)
    weights: str | None = setting(
        None, "MobileNet V1 1.0/224 in Keras's HDF5 layout, or 'sample' for the small network", metavar="FILE"
    )
    trainable: tuple[str, ...] = setting(("conv_pw_13", "dense"), "patterns of the layers to train", metavar="PATTERN")
    epochs: int | None = setting(None, "passes over the pictures (default: 100, embedded sample: 20)", minimum=1)
    batch_size: int | None = setting(None, "examples per update (default: 163, embedded sample: 50)", minimum=1)
    micro_batch: int | None = setting(
        None, "examples at a time on the device, gradients are summed (default: 15, embedded sample: 50)", minimum=1
    )
    learning_rate: float | None = setting(None, "learning rate (default: 0.003, embedded sample: 0.01)", above=0)

    def resolve(self, sample: bool) -> FlowersConfig:
        """Fill in the published values, or the sample's, where this configuration has None."""
        values = SAMPLE_SETTINGS if sample else PUBLISHED
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, sample=sample, **missing)

    def make_optimizer(self) -> Optimizer:
        return self.optimizer_at(self.learning_rate or PUBLISHED["learning_rate"])


IN_DATA = Path("weights") / "mobilenet_1_0_224_tf.h5"  # under the data folder
SAMPLE_WEIGHTS = Path(__file__).parent / "mobilenet_v1_025_96.safetensors"


@dataclass(frozen=True)
class Pretrained:
    """A network with pretrained weights and a newly initialised Dense layer.

    Arguments:
    - `network`, `weights`: the graph, and float32 arrays by "layer/role".
    - `size`: side of its input, in pixels.
    - `origin`: "package", "option", "EDGELEARN_DATA" or "keras".
    - `description`: the same in words.
    """

    network: Network
    weights: dict[str, np.ndarray]
    size: int
    origin: str
    description: str

    @property
    def sha256(self) -> str:
        """Hash of all weights in the order of their names."""
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            digest.update(self.weights[name].tobytes())
        return digest.hexdigest()


def load_pretrained(
    classes: int, seed: int, weights: str | None = None, data: str | None = None, sample: bool = False,
    download: bool = True,
) -> Pretrained:  # fmt: skip
    """Load MobileNet V1 1.0/224, or with `sample` the package's MobileNet V1 0.25/96, pretrained on drawings.

    Arguments:
    - `classes`, `seed`: outputs of the new Dense layer, and the seed of its weights.
    - `weights`: a Keras HDF5 file, or "sample" (default: from the folder `data`, else as Keras publishes it).
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `download`: use the network.

    Raises FormatError for a damaged file or one of another network, DataError if no weights are found.
    """
    if sample or weights == "sample":
        network = mobilenet_v1((96, 96, 3), 0.25, classes)
        found = safetensors.read_weights(SAMPLE_WEIGHTS)
        description = "MobileNet V1 0.25/96 of the package, pretrained on other drawings."
        return Pretrained(network, _with_head(network, found, seed), 96, "package", description)
    network = mobilenet_v1(classes=classes)
    folder = data or os.environ.get("EDGELEARN_DATA")
    in_data = Path(folder) / IN_DATA if folder else None
    if weights:
        path, origin = Path(weights), "option"
    elif in_data is not None and in_data.exists():
        path, origin = in_data, "EDGELEARN_DATA"
    else:
        path, origin = keras_h5.fetch_published(download), "keras"
    found = keras_h5.read_weights(path, network, skip=("dense",))
    description = f"MobileNet V1 1.0/224, ImageNet weights from {path.name} ({origin})."
    return Pretrained(network, _with_head(network, found, seed), 224, origin, description)


def _with_head(network: Network, body: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    fresh = network.initialize(seed)
    missing = [name for name in fresh if name not in body and not name.startswith("dense/")]
    if missing:
        raise FormatError(
            f"The pretrained weights lack '{missing[0]}': reinstall edgelearn, or give others with --weights."
        )
    return {name: body.get(name, array) for name, array in fresh.items()}


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
