"""Tasks to train (a data set with a split, a network, and how it is trained), and the trained networks of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgelearn import records
from edgelearn.data.cifar10 import DEVIATION, MEAN, SIZE, load_cifar10, standardized
from edgelearn.data.draws import FlipAndCrop
from edgelearn.data.pictures import ImageDataset, decode, load_images, standardize
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.extensions import check_name
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, safetensors
from edgelearn.lab.runs import Run, RunStore, figures
from edgelearn.ops import SGD, Optimizer
from edgelearn.train import CosineDecay, Model, PictureSource, VariedSource
from edgelearn.train.loading import load
from edgelearn.train.sources import Source

from .config import TrainingConfig
from .experiment import Experiment, Training

FILE = "model.safetensors"  # in the run's folder
Answer = list[tuple[str, float]] | str


@dataclass(frozen=True)
class Pictures:
    """How pictures become examples: the central square, scaled to `size` pixels, of which each channel is
    (x / 255 - mean) / deviation."""

    size: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)

    def examples(self, pixels: np.ndarray) -> np.ndarray:
        """Examples of pictures, uint8 (n, size, size, 3)."""
        return standardize(pixels, self.mean, self.deviation)

    def load(self, path: str) -> np.ndarray:
        """The example of a picture, float32 (1, size, size, 3). Raises DataError for a file that is none."""
        return self.examples(decode(Path(path), self.size, path)[None])


def save_model(
    run: Run, model: Model, class_names: Sequence[str], preprocessing: Pictures | Mapping[str, Any] | None = None
) -> None:
    """Keep a trained network and its ranges in its run's folder, without the state of its training. `preprocessing`:
    how its examples are made."""
    described = asdict(preprocessing) if isinstance(preprocessing, Pictures) else dict(preprocessing or {})
    ranges = {name: record for name, record in model.range_records().items() if not name.endswith("/gradients")}
    file = ModelFile(
        model.network, model.weights, ranges=ranges, preprocessing=described, class_names=tuple(class_names)
    )
    safetensors.write_model_file(run.folder / FILE, file)


def load_model(run: Run, device: str | None = None) -> Model:
    """Load the network that a finished run kept. Raises RunError if there is none, FormatError if it is damaged."""
    if run.status != "finished":
        command = f"edgelearn {run.record['kind']} --resume {run.id}"
        raise RunError(f"{run.id} has not finished, so it has no trained network: {command}")
    if not (run.folder / FILE).exists():
        raise RunError(f"{run.id}, a run of '{run.record['kind']}', kept no network for pictures. Choose another run.")
    return load(run.folder / FILE, device=device)


def newest(store: RunStore) -> Run:
    """The newest finished run that kept its network. Raises RunError if there is none."""
    for summary in store.list():
        if summary.status == "finished" and (summary.folder / FILE).exists():
            return store.open(summary.id)
    raise RunError("No finished run has a network yet: run `edgelearn flowers` first.")


def predict(
    paths: Sequence[str], store: RunStore, run: str | None = None, device: str | None = None, top: int = 3
) -> Iterator[tuple[str, Answer]]:
    """Yield (path, [(class, probability), ...] best first) for each picture, or (path, the problem with it).

    Arguments:
    - `paths`: JPEG or PNG files.
    - `run`: id of the run whose network is used, or the start of it (default: the newest).
    - `device`: part of a device's name.
    - `top`: number of classes.
    """
    chosen = store.open(run) if run else newest(store)
    model = load_model(chosen, device)
    if "size" not in model.preprocessing:
        raise RunError(f"{chosen.id} has no network for pictures. Choose another run.")
    try:
        pictures = records.convert(model.preprocessing, Pictures)
    except records.RecordError as error:
        raise FormatError(
            f"{chosen.folder / FILE} has no preprocessing of pictures ({error}). Choose another run."
        ) from None
    for path in paths:
        try:
            example = pictures.load(path)
        except DataError as error:
            yield path, str(error)
        else:
            probabilities = model.predict(example)[0]
            best = np.argsort(-probabilities)[:top]
            yield path, [(model.class_names[i], float(probabilities[i])) for i in best]


T = TypeVar("T", bound=TrainingConfig)


@dataclass
class Task:
    """A loaded task.

    Arguments:
    - `model`: the model on its device.
    - `train`, `test`: (source of examples, int labels).
    - `optimizer`: makes the optimizer for a number of updates.
    - `data`, `weights`: entries of the run's record on where these come from.
    - `batch_size`: examples per update.
    - `batchnorm`: see Model.compile.
    - `pictures`: how pictures or other things become examples, kept with the trained network.
    """

    model: Model
    train: tuple[Source, np.ndarray]
    test: tuple[Source, np.ndarray]
    optimizer: Callable[[int], Optimizer]
    data: dict
    weights: dict
    batch_size: int
    batchnorm: str = "moving"
    pictures: Pictures | Mapping[str, Any] | None = None

    def steps(self, epochs: int) -> int:
        """Number of updates of a number of epochs."""
        return epochs * ceil(len(self.train[1]) / self.batch_size)


@dataclass(frozen=True)
class TaskKind:
    """A task that can be loaded.

    Arguments:
    - `title`: the task in words.
    - `epochs`, `micro_batch`: used where the configuration has none.
    - `load`: loads the task of a configuration; raises DataError if the data is missing.
    """

    title: str
    epochs: int
    micro_batch: int
    load: Callable[[Any], Task]


def finish_task(training: Training, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    """Keep the network; the test accuracy is the last epoch's, as `fit` measured it."""
    rows, labels = run.history(), training.test[1]
    last, total = rows[-1], len(labels)
    if "val_accuracy" in last and np.ndim(labels) == 1:
        results = training.results(round(last["val_accuracy"] * total), total, last["val_loss"], seconds)
    else:  # nothing is right or wrong, or not once an example
        results = {"epochs": training.epochs, "seconds": seconds, "memory": training.memory()}
    results = {name.removeprefix("val_"): v for name, v in last.items() if name.startswith("val_")} | results
    results["traffic"] = training.phases["train"].traffic().total()
    save_model(run, training.model, training.data["classes"], training.preprocessing)
    figures.plot_learning_curves(rows, run.folder / "curves.png")
    if "interval" not in results:
        return results, ""
    low, high = results["interval"]
    accuracy = f"{results['correct']}/{total} = {results['accuracy']:.2%}"
    return results, f"Test accuracy: {accuracy} (95 % interval {low:.2%} to {high:.2%})"


def training_of(task: Task, config: Any, epochs: int, micro_batch: int | None, **more: Any) -> Training:
    """The training of a task whose model is compiled. `more`: further arguments of Training."""
    settings: dict[str, Any] = {"finish": finish_task} | more
    return Training(
        task=task, config=config, model=task.model, train=task.train, test=task.test, data=task.data,
        weights=task.weights, preprocessing=task.pictures, epochs=epochs, batch_size=task.batch_size,
        micro_batch=micro_batch, **settings,
    )  # fmt: skip


def task_experiment(
    kind: str, config_type: type[T], tasks: Mapping[str, TaskKind],
    compile: Callable[[T, Task, Optimizer], Mapping[str, Any] | None],  # noqa: A002
    **more: Any,
) -> Experiment[T, Training]:  # fmt: skip
    """An experiment that trains one of `tasks` in different ways. Everything else is the same: the examples, their
    order, the initial weights.

    Arguments:
    - `kind`, `config_type`, `more`: see Experiment.
    - `compile`: compiles the task's model with this optimizer as a configuration says; may return further arguments of
      the Training.
    """

    def resolve(config: T) -> T:
        """Fill in the task's values where the configuration has None. Raises UsageError for an unknown task."""
        check_name(config.task, tasks, "task")
        task = tasks[config.task]
        return replace(config, epochs=config.epochs or task.epochs, micro_batch=config.micro_batch or task.micro_batch)

    def load(config: T) -> Training:
        task, epochs = tasks[config.task].load(config), config.epochs or 1
        extra = compile(config, task, task.optimizer(task.steps(epochs))) or {}
        weights = f"Weights: {task.weights['description']}"
        lines = [task.data["description"], weights, tasks[config.task].title]
        return training_of(task, config, epochs, config.micro_batch, sources=lines, **extra)

    def presets() -> dict[str, T]:
        return {name: config_type(name) for name in tasks}

    return Experiment(kind, config_type, load, resolve=resolve, presets=presets, **more)


BATCH_SIZE = 128


@lru_cache(maxsize=2)
def decoded_cifar10(split: str, data: str | None, download: bool) -> tuple[ImageDataset, np.ndarray]:
    """All pictures, decoded once for all trainings of a comparison."""
    dataset = load_cifar10(split, data, download)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def cifar10(config: TrainingConfig, network: Network, learning_rate: float) -> Task:
    """Train `network` as ResNets are trained on CIFAR (He et al. 2016, section 4.2), but with a cosine schedule:
    mini-batches of 128, mirrored and shifted pictures, momentum 0.9, weight decay 5e-4. `learning_rate` is reached
    after the first epoch."""
    (train, train_pictures), (test, test_pictures) = (
        decoded_cifar10(split, config.data, config.download) for split in ("train", "test")
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
