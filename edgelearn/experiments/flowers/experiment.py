"""Fine-tuning on flowers. The command and the notebooks call the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgelearn.data.dataset import ImageDataset
from edgelearn.data.drawn_flowers import embedded_flowers
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.preprocess import normalize
from edgelearn.data.split import stratified_split
from edgelearn.data.subfolders import skipped_lines
from edgelearn.errors import DownloadError
from edgelearn.experiments.experiment import Experiment, Log
from edgelearn.experiments.trained import Pictures, save_model
from edgelearn.lab.runs import Run, figures
from edgelearn.ops import SoftmaxCrossEntropy
from edgelearn.train import Callback, Model, PictureSource, Subset
from edgelearn.train.phases import Phases
from edgelearn.units import MB

from .config import ACCURACY, FlowersConfig
from .weights import Pretrained, load_pretrained


class FlowersExperiment(Experiment[FlowersConfig]):
    """Pictures, network and model of one configuration. `run` does everything; a notebook can call single steps.

    Arguments:
    - `config`: settings of the run.
    - `dataset`: the pictures.
    - `pretrained`: the network and its weights.
    """

    kind, command, config_type = "flowers", "edgelearn flowers", FlowersConfig
    same: ClassVar = {"data": ("origin", "classes", "train", "test"), "weights": ("sha256",)}

    def __init__(self, config: FlowersConfig, dataset: ImageDataset, pretrained: Pretrained) -> None:
        self.config, self.dataset, self.pretrained = config, dataset, pretrained
        network = pretrained.network
        network.freeze().unfreeze(*config.trainable)
        self.model = Model(network, pretrained.weights, config.device, config.seed)
        self.model.compile(config.make_optimizer(), SoftmaxCrossEntropy(config.label_smoothing))
        self.train_indices, self.test_indices = stratified_split(dataset.labels, 0.8, config.seed)
        pictures = PictureSource(len(dataset), pretrained.size, self._load, normalize)
        self.train = Subset(pictures, self.train_indices)
        self.test = Subset(pictures, self.test_indices)

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
        return self.dataset.labels[self.train_indices], self.dataset.labels[self.test_indices]

    @cached_property
    def phases(self) -> Phases:
        """Memory plans: extracting features, training, testing."""
        c = self.config
        lengths = len(self.train), len(self.test)
        phases = self.model.phases(*self._sizes, c.budget, c.cache, lengths)
        phases["test"] = self.model.forward_plan(budget=c.budget)
        return phases

    @property
    def _sizes(self) -> tuple[int, int]:
        """Examples of a mini-batch and of a micro-batch."""
        size = min(self.config.batch_size or len(self.train), len(self.train))
        return size, min(self.config.micro_batch or size, size)

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

    def fit(self, callbacks: Sequence[Callback]) -> None:
        c = self.config
        train_labels, test_labels = self.labels
        size, micro_batch = self._sizes
        self.model.fit(
            self.train, train_labels, size, self.epochs, micro_batch=micro_batch,
            validation_data=(self.test, test_labels), callbacks=callbacks, cache=c.cache,
            cache_folder=Path(c.cache_folder) if c.cache_folder else None, budget=c.budget,
        )  # fmt: skip

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        """Test the whole network from pictures on; write results, network and figures."""
        _, labels = self.labels
        predicted = self.model.predict(self.test, self.phases["test"].request.micro_batch).argmax(-1)
        results = self.results(int((predicted == labels).sum()), len(labels), run.history()[-1]["val_loss"], seconds)
        save_model(run, self.model, self.dataset.class_names, Pictures(self.pretrained.size))
        names = self.dataset.class_names
        matrix = figures.confusion_matrix(labels.tolist(), predicted.tolist(), len(names))
        figures.plot_confusion(matrix, names, run.folder / "confusion.png")
        reference = {"published": ACCURACY["after"]} if self.published else None
        figures.plot_learning_curves(run.history(), run.folder / "curves.png", reference=reference)
        memory = results["memory"]
        figures.plot_memory(memory["planned"], memory["allocated"], memory["process"], run.folder / "memory.png")
        run.finish(results)
        log(self.report(run))
        return results

    @property
    def published(self) -> bool:
        """True for the experiment with published results: the flower photographs and the large network."""
        return self.dataset.origin in ("EDGELEARN_DATA", "tfds") and self.pretrained.origin != "package"

    def report(self, run: Run) -> str:
        """The results as text."""
        r = run.record["results"]
        low, high = r["interval"]
        before = run.record.get("before", {}).get("accuracy")
        interval = f"(95 % Wilson interval {low:.2%} to {high:.2%})"
        lines = [f"Test accuracy: {r['correct']}/{r['total']} = {r['accuracy']:.2%} {interval}"]
        if before is not None:
            lines.append(f"Before training: {round(before * r['total'])}/{r['total']} = {before:.2%}")
        if self.published:
            lines.append("Published by Qualcomm: 147/736 = 19.97% before, 670/736 = 91.03% after")
        planned, allocated, process = (r["memory"][name] / MB for name in ("planned", "allocated", "process"))
        lines.append(
            f"Memory: planned peak {planned:.1f} MB, allocated peak {allocated:.1f} MB, process peak {process:.1f} MB"
        )
        lines.append(f"Time: {r['seconds']:.0f} s. Everything is in {run.folder}")
        return "\n".join(lines)
