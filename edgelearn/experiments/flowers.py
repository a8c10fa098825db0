"""Fine-tuning MobileNet V1 on flowers: Qualcomm's published example of on-device training.

    edgelearn flowers            # the published job
    edgelearn flowers --sample   # the same job small, on drawings; needs no files and no network

Guide: docs/guides/fine-tune.md. Figures: docs/results/flowers.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data.files import skipped_lines
from edgelearn.data.flowers import drawn_thicket, embedded_flowers, load_flowers, split_thicket, thicket_flowers
from edgelearn.data.pictures import ImageDataset, load_images, normalize
from edgelearn.display import plural
from edgelearn.errors import DownloadError, FormatError
from edgelearn.graph import Network
from edgelearn.interop import keras_h5, safetensors
from edgelearn.lab.runs import Run
from edgelearn.models import mobilenet_v1
from edgelearn.ops import Adam, SoftmaxCrossEntropy
from edgelearn.train import CosineDecay, Model, PictureSource, Subset

from .claims import Claim
from .config import DATA, DOWNLOAD, ConfigError, TrainingConfig, epochs_setting, setting
from .experiment import Experiment, Training
from .finetune import TransferConfig, data_entry, digest, fine_tuning, finish_fine_tuning, split
from .tasks import Pictures, Task

ACCURACY = {"before": 147 / 736, "after": 670 / 736}  # published by Qualcomm
CLAIM: Claim[dict[str, Any]] = Claim(
    "Fine-tuning on the device names {target:.1%} of the photographs or more (Qualcomm)",
    lambda results: (results["accuracy"], f"{results['correct']} of {results['total']}: {results['accuracy']:.1%}"),
    "≥",
    ACCURACY["after"],
)
PUBLISHED = {"epochs": 100, "batch_size": 163, "micro_batch": 15, "learning_rate": 0.003}
SAMPLE_SETTINGS = {"epochs": 20, "batch_size": 50, "micro_batch": 50, "learning_rate": 0.01}


@dataclass(frozen=True)
class FlowersConfig(TransferConfig):
    """Fine-tuning of MobileNet V1. Where `epochs`, `batch_size`, `micro_batch` or `learning_rate` are None, the
    published values hold, or with the embedded sample those of SAMPLE. `images`, `data` and `sample` choose the
    pictures (see edgelearn.data.flowers.load_flowers), or `thicket` (see edgelearn.data.flowers).

    Raises ConfigError for an invalid value.
    """

    images: str | None = setting(None, "your own pictures: a subfolder a class, JPEG or PNG, any size", metavar="DIR")
    data: str | None = setting(None, DATA, metavar="DIR")
    sample: bool = setting(False, "the embedded sample: drawn flowers and a small network")
    thicket: bool = setting(False, "the embedded sample that is hard: drawn flowers half hidden, and the small network")
    download: bool = setting(True, DOWNLOAD)
    weights: str | None = setting(
        None, "MobileNet V1 1.0/224 in Keras's HDF5 layout, or 'sample' for the small network", metavar="FILE"
    )
    trainable: tuple[str, ...] = setting(("conv_pw_13", "dense"), "patterns of the layers to train", metavar="PATTERN")
    epochs: int | None = epochs_setting(None, "passes over the pictures (default: 100, embedded sample: 20)")
    batch_size: int | None = setting(None, "examples per update (default: 163, embedded sample: 50)", minimum=1)
    micro_batch: int | None = setting(
        None, "examples at a time on the device, gradients are summed (default: 15, embedded sample: 50)", minimum=1
    )
    learning_rate: float | None = setting(None, "learning rate (default: 0.003, embedded sample: 0.01)", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thicket and (self.sample or self.images):
            raise ConfigError("thicket", "another source of pictures is given as well: leave one of them out.")

    def resolve(self, sample: bool) -> FlowersConfig:
        """Fill in the published values, or the sample's, where this configuration has None."""
        values = SAMPLE_SETTINGS if sample else PUBLISHED
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, sample=sample and not self.thicket, **missing)


IN_DATA = Path("weights") / "mobilenet_1_0_224_tf.h5"  # under the data folder
SAMPLE_SIZE = 96  # pixels
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
    def record(self) -> dict[str, str]:
        """Entry of a run's record, with the hash of all weights."""
        return {"origin": self.origin, "description": self.description, "sha256": digest(self.weights)}


def load_pretrained(
    classes: int, seed: int, weights: str | None = None, data: str | None = None, sample: bool = False,
    download: bool = True, size: int = 224, alpha: float = 1.0,
) -> Pretrained:  # fmt: skip
    """Load MobileNet V1, or with `sample` the package's MobileNet V1 0.25/96, pretrained on drawings.

    Arguments:
    - `classes`, `seed`: outputs of the new Dense layer, and the seed of its weights.
    - `weights`: a Keras HDF5 file, or "sample" (default: those of width 1, from the folder `data`, else as Keras
      publishes them).
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `download`: use the network.
    - `size`: pixels of the pictures that it reads, but for the sample's (default 224).
    - `alpha`: width multiplier, but for the sample's (default 1).

    Raises FormatError for a damaged file or one of another network, DataError if no weights are found.
    """
    if sample or weights == "sample":
        network = mobilenet_v1((SAMPLE_SIZE, SAMPLE_SIZE, 3), 0.25, classes)
        found = safetensors.read_weights(SAMPLE_WEIGHTS)
        description = "MobileNet V1 0.25/96 of the package, pretrained on other drawings."
        return Pretrained(network, _with_head(network, found, seed), SAMPLE_SIZE, "package", description)
    network = mobilenet_v1((size, size, 3), alpha, classes)
    folder = data or os.environ.get("EDGELEARN_DATA")
    in_data = Path(folder) / IN_DATA if folder else None
    if weights:
        path, origin = Path(weights), "option"
    elif in_data is not None and in_data.exists():
        path, origin = in_data, "EDGELEARN_DATA"
    else:
        path, origin = keras_h5.fetch_published(download), "keras"
    found = keras_h5.read_weights(path, network, skip=("dense",))
    description = f"MobileNet V1 {alpha}/{size}, ImageNet weights from {path.name} ({origin})."
    return Pretrained(network, _with_head(network, found, seed), size, origin, description)


def _with_head(network: Network, body: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    fresh = network.initialize(seed)
    missing = [name for name in fresh if name not in body and not name.startswith("dense/")]
    if missing:
        raise FormatError(
            f"The pretrained weights lack '{missing[0]}': reinstall edgelearn, or give others with --weights."
        )
    return {name: body.get(name, array) for name, array in fresh.items()}


@dataclass(kw_only=True, repr=False)
class FlowersTraining(Training[FlowersConfig]):
    """The fine-tuning of `pretrained`, a network and its weights, on the pictures of `dataset`."""

    dataset: ImageDataset
    pretrained: Pretrained

    @property
    def published(self) -> bool:
        """True for the experiment with published results: the flower photographs and the large network."""
        return self.dataset.origin in ("EDGELEARN_DATA", "tfds") and self.pretrained.origin != "package"


def load_flowers_training(config: FlowersConfig) -> FlowersTraining:
    """Load pictures and weights. Without a network connection the embedded sample is used for both, and
    `dataset.description` says so; a source that the configuration names is never replaced."""
    if config.thicket:
        dataset = thicket_flowers()
    else:
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
    return flowers_training(config.resolve(dataset.origin == "embedded sample"), dataset, pretrained)


def flowers_training(config: FlowersConfig, dataset: ImageDataset, pretrained: Pretrained) -> FlowersTraining:
    """The fine-tuning of a pretrained network on pictures, with a configuration that is resolved."""
    network = pretrained.network
    network.freeze().unfreeze(*config.trainable)
    model = Model(network, pretrained.weights, config.device, config.seed)
    rate = config.learning_rate or PUBLISHED["learning_rate"]
    model.compile(config.optimizer_at(rate), SoftmaxCrossEntropy(config.label_smoothing))
    read = lambda indices, size: load_images(dataset, indices.tolist(), size)  # noqa: E731
    examples = PictureSource(len(dataset), pretrained.size, read, normalize, dataset.fingerprint())
    train, test = split(examples, dataset.labels, config.seed)
    skipped = skipped_lines(dataset.skipped)
    if skipped:
        skipped.append(f"  {plural(len(skipped), 'file')} skipped")
    training = FlowersTraining(
        dataset=dataset, pretrained=pretrained, model=model, train=train, test=test, finish=_finish,
        data=data_entry(dataset, (train, test)), weights=pretrained.record, preprocessing=Pictures(pretrained.size),
        sources=[dataset.description, *skipped, f"Network: {pretrained.description}"],
        **fine_tuning(config, config.cache),
    )  # fmt: skip
    if training.published:
        training.claims = (*training.claims, CLAIM)
    return training


def _finish(training: FlowersTraining, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    if not training.published:
        return finish_fine_tuning(training, run, seconds)
    notes = ["Published by Qualcomm: 147/736 = 19.97% before, 670/736 = 91.03% after"]
    return finish_fine_tuning(training, run, seconds, {"published": ACCURACY["after"]}, notes)


def _presets() -> dict[str, FlowersConfig]:
    return {
        "sample": FlowersConfig(sample=True), "thicket": FlowersConfig(thicket=True), "photographs": FlowersConfig(),
    }  # fmt: skip


FlowersExperiment = Experiment("flowers", FlowersConfig, load_flowers_training, presets=_presets)


def thicket_task(config: TrainingConfig) -> Task:
    """Fine-tune all layers of the package's MobileNet V1 on the thicket (edgelearn.data.flowers), by Adam with a cosine
    schedule and mini-batches of 50."""
    dataset, drawn = drawn_thicket(SAMPLE_SIZE)
    pretrained = load_pretrained(len(dataset.class_names), config.seed, sample=True)
    model = Model(pretrained.network, pretrained.weights, config.device, config.seed)
    source = PictureSource(len(dataset), SAMPLE_SIZE, lambda indices, size: drawn[indices], normalize)
    train, test = ((Subset(source, part), dataset.labels[part]) for part in split_thicket(dataset, config.seed))
    return Task(
        model, train, test, lambda steps: Adam(CosineDecay(1e-3, max(1, steps))), data_entry(dataset, (train, test)),
        pretrained.record, 50, pictures=Pictures(SAMPLE_SIZE),
    )  # fmt: skip
