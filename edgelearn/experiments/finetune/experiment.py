"""Fine-tuning of any model on a folder of pictures or clips."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data import folder as picture_folder
from edgelearn.data.audio import folder as clip_folder
from edgelearn.data.audio.clips import ClipDataset, load_clips
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.loading import load_images
from edgelearn.data.split import stratified_split
from edgelearn.data.subfolders import skipped_lines
from edgelearn.errors import PlanError, UsageError
from edgelearn.experiments.trained import Pictures
from edgelearn.experiments.transfer import TransferExperiment
from edgelearn.extensions import import_instance, is_reference
from edgelearn.graph import Network, replace_head, split_frozen
from edgelearn.interop import ModelFile, read_model
from edgelearn.ops import Loss, Optimizer, SoftmaxCrossEntropy
from edgelearn.train import Callback, Model, PictureSource, Subset
from edgelearn.train.callbacks.progress import with_progress
from edgelearn.train.sources import Source

from .config import PRECISIONS, FinetuneConfig
from .preprocessing import clip_settings, front_end_of, picture_settings, pictures_of

Dataset = ImageDataset | ClipDataset


class FinetuneExperiment(TransferExperiment[FinetuneConfig]):
    """A model and examples of one configuration. `run` does everything; a notebook can call single steps.

    Arguments:
    - `config`: settings of the run.
    - `dataset`: the pictures or clips.
    - `file`: the pretrained model.
    """

    kind, command, config_type = "finetune", "edgelearn finetune", FinetuneConfig

    def __init__(self, config: FinetuneConfig, dataset: Dataset, file: ModelFile) -> None:
        self.config, self.dataset, self.file = config, dataset, file
        self.class_names = dataset.class_names
        network, self.head = _network(config, file, len(self.class_names))
        network.freeze().unfreeze(*self.head, *config.train)
        weights = network.initialize(config.seed)
        self.model = Model(network, weights | _body(network, file, self.head), config.device, config.seed)
        examples, self.preprocessing = _examples(config, dataset, network, file)
        self.model.class_names, self.model.preprocessing = self.class_names, self.preprocessing
        self.train_indices, self.test_indices = stratified_split(dataset.labels, 0.8, config.seed)
        self.train, self.test = Subset(examples, self.train_indices), Subset(examples, self.test_indices)
        self.train_labels, self.test_labels = dataset.labels[self.train_indices], dataset.labels[self.test_indices]
        loss: Loss = SoftmaxCrossEntropy(config.label_smoothing)
        if is_reference(config.loss):
            loss = import_instance(config.loss, Loss)
        self.model.compile(self.resolved_optimizer, loss, precision=PRECISIONS[config.precision])

    @classmethod
    def load(cls, config: FinetuneConfig) -> FinetuneExperiment:
        """Load the model and the examples. Raises UsageError for missing settings, FormatError for a model that can't
        be read, DataError for a folder without examples."""
        if not config.model:
            raise UsageError("No model is given: edgelearn finetune MODEL --images DIR.")
        if (config.images is None) == (config.clips is None):
            raise UsageError("Give --images DIR or --clips DIR, one of them.")
        dataset = (
            picture_folder.load_folder(config.images) if config.images else clip_folder.load_folder(config.clips or "")
        )
        return cls(config, dataset, read_model(config.model, inputs=config.inputs, outputs=config.outputs))

    @property
    def resolved_optimizer(self) -> Optimizer:
        return self.config.optimizer_at(self.config.learning_rate or 0.01)

    @property
    def cache(self) -> str | None:
        if self.config.cache != "auto":
            return self.config.cache
        possible = self.config.precision == "fp32" and split_frozen(self.model.network) is not None
        return "fp32" if possible else None

    def origins(self) -> dict:
        d = self.dataset
        return {
            "data": {"origin": d.origin, "description": d.description, "classes": list(d.class_names),
                     "train": len(self.train), "test": len(self.test), "skipped": len(d.skipped)},
            "weights": {"origin": self.config.model, "description": self._description, "sha256": self._sha256},
            "preprocessing": self.preprocessing,
        }  # fmt: skip

    def sources(self) -> list[str]:
        cached = f"cached in {self.cache}" if self.cache else "not cached"
        return [
            self.dataset.description, *skipped_lines(self.dataset.skipped), f"Network: {self._description}",
            f"New classifier: {', '.join(self.head)}. Preprocessing: {self.preprocessing}. Frozen features: {cached}.",
        ]  # fmt: skip

    @property
    def _description(self) -> str:
        return f"'{self.file.network.name}' of {Path(self.config.model).name}."

    @property
    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.file.weights):
            digest.update(np.ascontiguousarray(self.file.weights[name]).tobytes())
        return digest.hexdigest()


def finetune(
    model: str | Path, *, callbacks: Sequence[Callback] = (), verbose: str | int = "auto", **settings: Any
) -> Model:
    """Fine-tune the model in a file and return it, with class names and preprocessing; no run is kept.

    >>> model = el.finetune("mobilenet.tflite", images="my/pictures", pixels="tf", budget="20 MB")
    >>> model.export("mine.tflite")

    Arguments:
    - `model`: the file, of any format that is read.
    - `callbacks`: see Callback.
    - `verbose`: whether progress is shown, as in Model.fit.
    - `settings`: those of FinetuneConfig, such as `images` or `clips`, `train`, `epochs`, `budget`, `precision`.

    Raises UsageError, PlanError, FormatError and DataError as `edgelearn finetune` does.
    """
    experiment = FinetuneExperiment.load(FinetuneConfig(model=str(model), **settings))
    experiment.fit(with_progress(callbacks, verbose))
    return experiment.model


def _network(config: FinetuneConfig, file: ModelFile, classes: int) -> tuple[Network, list[str]]:
    """The network to train, and the names of its classifier's layers."""
    if not config.keep_head:
        network = replace_head(file.network, classes)
        return network, [list(network.nodes)[-2]]
    outputs = file.network.output.shape
    if outputs != (classes,):
        raise PlanError(f"The model has outputs of shape {outputs} for {classes} classes: leave --keep-head out.")
    return file.network, [list(dict.fromkeys(p.layer for p in file.network.parameters.values()))[-1]]


def _body(network: Network, file: ModelFile, head: list[str]) -> dict[str, np.ndarray]:
    """Weights of the model's own layers."""
    own = {name: array for name, array in file.weights.items() if name in network.parameters}
    kept = network is file.network
    return {name: array for name, array in own.items() if kept or name.partition("/")[0] not in head}


def _examples(config: FinetuneConfig, dataset: Dataset, network: Network, file: ModelFile) -> tuple[Source, dict]:
    """The examples, and how they are made."""
    if isinstance(dataset, ImageDataset):
        pictures: Pictures = pictures_of(network, file.preprocessing, config.pixels)

        def load(indices: np.ndarray, size: int) -> np.ndarray:
            return load_images(dataset, indices.tolist(), size)

        return PictureSource(len(dataset), pictures.size, load, pictures.examples), picture_settings(pictures)
    front_end, seconds = front_end_of(network, file.preprocessing, config.front_end)
    found = front_end(load_clips(dataset, rate=front_end.rate, seconds=seconds))
    sizes = tuple(n for n in network.input_shape if n > 1)
    if found.shape[1:] != sizes:  # frequencies first
        found = found.swapaxes(1, 2)
    return np.ascontiguousarray(found.reshape(-1, *network.input_shape)), clip_settings(front_end, seconds)
