"""The flowers job, from pictures to a run folder. The CLI and the notebooks call the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from edgelearn import atomic
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.drawn_flowers import embedded_flowers
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.preprocess import normalize
from edgelearn.data.split import stratified_split
from edgelearn.data.subfolders import skipped_lines
from edgelearn.errors import DownloadError
from edgelearn.experiments.experiment import Experiment, Say, process_peak_bytes
from edgelearn.interop import safetensors
from edgelearn.lab.runs import Run, figures, wilson_interval
from edgelearn.ops import SoftmaxCrossEntropy
from edgelearn.train import Callback, Model, PictureSource, Subset
from edgelearn.train.phases import Phases

from .config import PUBLISHED, FlowersConfig
from .weights import Pretrained, load_pretrained


class FlowersExperiment(Experiment):
    """Pictures, network and model of one configuration. `run` does the whole job; a notebook can do its steps."""

    kind, command, config_type = "flowers", "edgelearn flowers", FlowersConfig
    same: ClassVar = {"data": ("origin", "classes", "train", "test"), "weights": ("sha256",)}

    def __init__(self, config: FlowersConfig, dataset: ImageDataset, pretrained: Pretrained) -> None:
        self.config, self.dataset, self.pretrained = config, dataset, pretrained
        network = pretrained.network
        network.freeze().unfreeze(*config.trainable)
        self.model = Model(network, pretrained.weights, config.device, config.seed)
        self.model.compile(config.make_optimizer(), SoftmaxCrossEntropy(config.label_smoothing))
        self.train_indices, self.test_indices = stratified_split(dataset.labels, 0.8, config.seed)
        pictures = PictureSource(len(dataset), pretrained.size, partial(load_images, dataset), normalize)
        self.train = Subset(pictures, self.train_indices)
        self.test = Subset(pictures, self.test_indices)

    @classmethod
    def load(cls, config: FlowersConfig) -> FlowersExperiment:
        """Find pictures and weights. Where neither can be had because there is no network, the embedded sample is
        used for both, and `dataset.description` says so; what was asked for by name is never replaced."""
        dataset = load_flowers(config.images, config.data, config.download, config.sample)
        sample = dataset.origin == "embedded sample"
        load = partial(load_pretrained, seed=config.seed, weights=config.weights, data=config.data)
        try:
            pretrained = load(len(dataset.class_names), sample=sample and not config.weights, download=config.download)
        except DownloadError as error:
            if dataset.origin != "tfds":
                raise
            dataset = embedded_flowers()
            why = f"because the photographs' network cannot be had: {str(error).split('. ')[0]}."
            dataset = replace(dataset, description=f"{dataset.description.rstrip('.')}, {why}")
            pretrained = load(len(dataset.class_names), sample=True)
        return cls(config.resolve(dataset.origin == "embedded sample"), dataset, pretrained)

    @property
    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Int labels of the training and the test pictures."""
        return self.dataset.labels[self.train_indices], self.dataset.labels[self.test_indices]

    @cached_property
    def phases(self) -> Phases:
        """The memory plans of the job: extracting features, training, testing."""
        c = self.config
        size = min(c.batch_size, len(self.train))
        lengths = len(self.train), len(self.test)
        phases = self.model.phases(size, min(c.micro_batch, size), c.budget, c.cache, lengths)
        phases["test"] = self.model.forward_plan(budget=c.budget)
        return phases

    def describe(self) -> dict:
        device = self.model.device.facts() | {"reason": self.model.choice.reason}
        return {"device": device, **self.origins(), "plan": self.phases.to_dict()}

    def origins(self) -> dict:
        """What a run records of its pictures and of the weights that it begins with."""
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
        size = min(c.batch_size, len(self.train))
        self.model.fit(
            self.train, train_labels, size, c.epochs, micro_batch=min(c.micro_batch, size),
            validation_data=(self.test, test_labels), callbacks=callbacks, cache=c.cache,
            cache_folder=c.cache_folder, budget=c.budget,
        )  # fmt: skip

    def finish(self, run: Run, seconds: float, say: Say) -> dict:
        """Test the whole network, picture to probabilities; write results, weights and figures."""
        _, labels = self.labels
        predicted = self.model.predict(self.test, self.phases["test"].request.micro_batch).argmax(-1)
        allocated = self.model.context.ledger.peak
        correct, total = int((predicted == labels).sum()), len(labels)
        results = {
            "correct": correct, "total": total, "accuracy": correct / total, "epochs": self.config.epochs,
            "loss": run.history()[-1]["val_loss"], "seconds": seconds,
            "interval": list(wilson_interval(correct, total)),
            "memory": {"planned": self.phases.peak_bytes, "allocated": allocated, "process": process_peak_bytes()},
        }  # fmt: skip
        atomic.write_bytes(run.folder / "weights.safetensors", safetensors.to_bytes(self.model.weights))
        atomic.write_bytes(run.folder / "network.json", self.model.network.to_json().encode())
        names = self.dataset.class_names
        matrix = figures.confusion_matrix(labels, predicted, len(names))
        figures.plot_confusion(matrix, names, run.folder / "confusion.png")
        reference = {"published": PUBLISHED["after"]} if self.published else None
        figures.plot_learning_curves(run.history(), run.folder / "curves.png", reference=reference)
        figures.plot_memory(*results["memory"].values(), run.folder / "memory.png")
        run.finish(results)
        say(self.report(run))
        return results

    @property
    def published(self) -> bool:
        """Whether this is the job whose figures are published: the flower photographs, whole, and the large network."""
        return self.dataset.origin in ("EDGELEARN_DATA", "tfds") and self.pretrained.origin != "package"

    def report(self, run: Run) -> str:
        """The results in a few lines."""
        r = run.record["results"]
        low, high = r["interval"]
        before = run.record.get("before", {}).get("accuracy")
        interval = f"(95 % Wilson interval {low:.2%} to {high:.2%})"
        lines = [f"Test accuracy: {r['correct']}/{r['total']} = {r['accuracy']:.2%} {interval}"]
        if before is not None:
            lines.append(f"Before training: {round(before * r['total'])}/{r['total']} = {before:.2%}")
        if self.published:
            lines.append("Published by Qualcomm: 147/736 = 19.97% before, 670/736 = 91.03% after")
        memory = r["memory"]
        lines.append("Memory: planned peak {:.1f} MiB, allocated peak {:.1f} MiB, process peak {:.1f} MiB".format(
            *(memory[k] / 2**20 for k in ("planned", "allocated", "process"))))  # fmt: skip
        lines.append(f"Time: {r['seconds']:.0f} s. Everything is in {run.folder}")
        return "\n".join(lines)
