"""Fine-tuning of any pretrained model on a folder of pictures or clips."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import Precision
from edgelearn.compile.search import budgets
from edgelearn.data import audio as clip_folder
from edgelearn.data import features
from edgelearn.data import pictures as picture_folder
from edgelearn.data.audio import ClipDataset, load_clips
from edgelearn.data.draws import stratified_split
from edgelearn.data.features import BC_RESNET, DS_CNN_ARM, DS_CNN_MLPERF, FrontEnd
from edgelearn.data.files import skipped_lines
from edgelearn.data.pictures import ImageDataset, load_images
from edgelearn.display import MB
from edgelearn.errors import DataError, FormatError, PlanError, UsageError
from edgelearn.extensions import import_instance, is_reference
from edgelearn.graph import Network, replace_head, split_frozen
from edgelearn.interop import ModelFile, read_model
from edgelearn.lab.runs import Run, figures
from edgelearn.ops import SGD, Adam, AdamW, Float16, Format, Loss, Optimizer, SoftmaxCrossEntropy
from edgelearn.statistics import confusion_matrix
from edgelearn.train import Callback, Model, PictureSource, Subset
from edgelearn.train.callbacks import with_progress
from edgelearn.train.sources import Source

from .config import Config, device_setting, epochs_setting, seed_setting, setting
from .experiment import Experiment, Training
from .tasks import Pictures, save_model

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")
CACHES = ("fp32", "fp16")


@dataclass(frozen=True)
class TransferConfig(Config):
    """Settings of every fine-tuning. Raises ConfigError for an invalid value."""

    epochs: int | None = epochs_setting(None, "passes over the examples")
    batch_size: int | None = setting(None, "examples per update", minimum=1)
    micro_batch: int | None = setting(None, "examples at a time on the device, gradients are summed", minimum=1)
    optimizer: str = setting("momentum", "optimizer", choices=OPTIMIZERS, extensible=True)
    learning_rate: float | None = setting(None, "learning rate", above=0)
    label_smoothing: float = setting(0.0, "share of the label given to all classes", minimum=0, maximum=1)
    cache: str | None = setting("fp32", "format of the frozen layers' features kept in memory", choices=CACHES)
    cache_folder: str | None = setting(None, "keep the features in a temporary file in this folder", metavar="DIR")
    budget: int | str | None = setting(
        None, "limit of the memory plan: '64MB', '20MB peak', '8MB stored' or several", check=budgets, metavar="SIZE"
    )
    seed: int = seed_setting()
    device: str | None = device_setting()

    def optimizer_at(self, rate: float) -> Optimizer:
        """The chosen optimizer with this learning rate. Raises ExtensionError if it can't be imported."""
        if is_reference(self.optimizer):
            return import_instance(self.optimizer, Optimizer, rate)
        return {
            "sgd": SGD(rate),
            "momentum": SGD(rate, momentum=0.9),
            "nesterov": SGD(rate, momentum=0.9, nesterov=True),
            "adam": Adam(rate),
            "adamw": AdamW(rate),
        }[self.optimizer]


def fine_tuning(config: TransferConfig, cache: str | None) -> dict[str, Any]:
    """Arguments of the Training of every fine-tuning."""
    folder = Path(config.cache_folder) if config.cache_folder else None
    settings = {"cache": cache, "cache_folder": folder, "budget": config.budget}
    return {
        "config": config, "epochs": config.epochs, "batch_size": config.batch_size, "micro_batch": config.micro_batch,
        "settings": settings, "tests_whole": True,
    }  # fmt: skip


def split(examples: Any, labels: np.ndarray, seed: int) -> list[tuple[Subset, np.ndarray]]:
    """(examples, labels) to train and to test with: four fifths of each class, and the rest."""
    return [(Subset(examples, part), labels[part]) for part in stratified_split(labels, 0.8, seed)]


def data_entry(dataset: ImageDataset | ClipDataset, parts: Sequence[tuple[Subset, np.ndarray]]) -> dict[str, Any]:
    """Entry of the run's record on the examples."""
    train, test = (len(labels) for _, labels in parts)
    return {
        "origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
        "train": train, "test": test, "skipped": len(dataset.skipped),
    }  # fmt: skip


def digest(weights: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of all weights in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(np.ascontiguousarray(weights[name]).tobytes())
    return found.hexdigest()


def finish_fine_tuning(
    training: Training, run: Run, seconds: float, reference: dict[str, float] | None = None, notes: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Test the whole network from the examples on; write network and figures.

    Arguments:
    - `reference`: accuracies of others to draw beside the learning curve.
    - `notes`: more lines of the report.
    """
    (examples, labels), names, history = training.test, training.data["classes"], run.history()
    predicted = training.model.predict(examples, training.phases["test"].request.micro_batch).argmax(-1)
    correct, total = int((predicted == labels).sum()), len(labels)
    results = training.results(correct, total, history[-1]["val_loss"], seconds)
    save_model(run, training.model, names, training.preprocessing)
    matrix = confusion_matrix(labels, predicted, len(names))
    figures.plot_confusion(matrix, names, run.folder / "confusion.png")
    figures.plot_learning_curves(history, run.folder / "curves.png", reference=reference)
    planned, allocated, process = (results["memory"][name] for name in ("planned", "allocated", "process"))
    figures.plot_memory(planned, allocated, process, run.folder / "memory.png")
    low, high = results["interval"]
    lines = [f"Test accuracy: {correct}/{total} = {correct / total:.2%} (95 % Wilson interval {low:.2%} to {high:.2%})"]
    if (before := run.record.get("before", {}).get("accuracy")) is not None:
        lines.append(f"Before training: {round(before * total)}/{total} = {before:.2%}")
    return results, "\n".join([
        *lines, *notes,
        f"Memory at most: planned {planned / MB:.1f} MB, allocated {allocated / MB:.1f} MB, process {process / MB:.1f} MB",  # noqa: E501
        f"Time: {seconds:.0f} s. Everything is in {run.folder}",
    ])  # fmt: skip


# (mean, deviation) of x / 255, under the names of Keras's `preprocess_input` modes where there is one.
PIXELS = {
    "tf": ((0.5,) * 3, (0.5,) * 3),
    "unit": ((0.0,) * 3, (1.0,) * 3),
    "raw": ((0.0,) * 3, (1 / 255,) * 3),
    "torch": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
FRONT_ENDS = {"bc_resnet": BC_RESNET, "ds_cnn": DS_CNN_MLPERF, "ds_cnn_arm": DS_CNN_ARM}


def pictures_of(network: Network, known: Mapping[str, Any], pixels: str | None) -> Pictures:
    """How pictures become examples of `network`.

    Arguments:
    - `known`: the model's preprocessing: {"size", "mean", "deviation"} of pixels / 255, or, as TFLite's metadata has
      it, {"mean", "std"} of pixels; or empty.
    - `pixels`: a name in PIXELS, if `known` is empty.

    Raises PlanError if neither says it, both do, or the network takes no square RGB images; FormatError for metadata of
    another kind.
    """
    shape = network.input_shape
    if len(shape) != 3 or shape[0] != shape[1] or shape[2] != 3:
        raise PlanError(f"'{network.name}' takes {shape}, but pictures are square and have 3 channels.")
    if "mean" not in known:
        if pixels is None:
            names = ", ".join(PIXELS)
            raise PlanError(
                f"The model doesn't say what pixels become before they enter it. Say it with --pixels ({names}); look "
                f"it up where the model comes from, for a wrong one costs accuracy."
            )
        return Pictures(shape[0], *PIXELS[pixels])
    if pixels is not None:
        raise PlanError("The model's metadata says what pixels become: leave --pixels out.")
    try:
        if "std" in known:
            return Pictures(shape[0], _three(known["mean"], 255), _three(known["std"], 255))
        return Pictures(shape[0], _three(known["mean"]), _three(known["deviation"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"The model's preprocessing can't be understood ({error!r}): {dict(known)!s:.200}.") from None


def _three(values: Any, scale: float = 1.0) -> tuple[float, float, float]:
    """A number for each channel, from three or from one."""
    numbers = [float(value) / scale for value in (values if isinstance(values, list | tuple) else [values])]
    red, green, blue = numbers * 3 if len(numbers) == 1 else numbers
    return red, green, blue


def front_end_of(network: Network, known: Mapping[str, Any], name: str | None) -> tuple[FrontEnd, float]:
    """(features, seconds) of clips for `network`. Arguments and errors as `pictures_of`, with {"front_end", "seconds"}
    and a name in FRONT_ENDS."""
    if "front_end" in known:
        if name is not None:
            raise PlanError("The model's metadata says which features it takes: leave --front-end out.")
        try:
            front_end, seconds = features.from_json(known["front_end"]), float(known.get("seconds", 1.0))
        except (TypeError, ValueError, DataError) as error:
            raise FormatError(f"The model's preprocessing can't be understood ({error!r:.200}).") from None
    elif name is None:
        raise PlanError(
            f"The model doesn't say which features it takes. Say it with --front-end ({', '.join(FRONT_ENDS)})."
        )
    else:
        front_end, seconds = FRONT_ENDS[name], 1.0
    frames, bands = front_end.shape(round(front_end.rate * seconds))
    if sorted(n for n in network.input_shape if n > 1) != sorted((frames, bands)):
        raise PlanError(
            f"'{network.name}' takes {network.input_shape}, but the features are {frames} frames of {bands} values. "
            f"Choose other features."
        )
    return front_end, seconds


PRECISIONS = {
    "fp32": Precision(),
    "fp16": Precision(activations=Float16(), simulated=False),
    "int8": Precision(weights=Format(8, symmetric=True, per_channel=True), activations=Format(8)),
}


@dataclass(frozen=True)
class FinetuneConfig(TransferConfig):
    """Fine-tuning of the model in a file, on a folder of pictures (`images`) or of clips (`clips`) with a subfolder for
    each class. How examples are made comes from the model's metadata; `pixels` or `front_end` says it where that is
    missing.

    Raises ConfigError for an invalid value.
    """

    model: str = setting("", "file of the model: TFLite, ONNX, Keras, safetensors, …", metavar="MODEL", positional=True)
    images: str | None = setting(None, "your pictures: a subfolder a class, JPEG or PNG, any size", metavar="DIR")
    clips: str | None = setting(None, "your clips: a subfolder a class, WAV, FLAC or OGG", metavar="DIR")
    train: tuple[str, ...] = setting((), "patterns of layers to train besides the new head", metavar="PATTERN")
    inputs: tuple[str, ...] = setting((), "tensors of the file at which the network begins", metavar="TENSOR")
    outputs: tuple[str, ...] = setting((), "tensors of the file at which it ends", metavar="TENSOR")
    keep_head: bool = setting(False, "train the model's own classifier, whose classes are the folder's")
    pixels: str | None = setting(
        None, "what pictures become, if the model doesn't say: tf -1 to 1, unit 0 to 1, raw 0 to 255, torch ImageNet's",
        choices=tuple(PIXELS),
    )  # fmt: skip
    front_end: str | None = setting(None, "features of clips, if the model doesn't say", choices=tuple(FRONT_ENDS))
    precision: str = setting("fp32", "number formats; int8 leaves the ranges that an int8 export needs",
                             choices=tuple(PRECISIONS))  # fmt: skip
    loss: str = setting("cross-entropy", "loss", choices=("cross-entropy",), extensible=True)
    epochs: int | None = epochs_setting(20, "passes over the examples")
    batch_size: int | None = setting(32, "examples per update", minimum=1)
    learning_rate: float | None = setting(0.01, "learning rate", above=0)
    cache: str | None = setting(
        "auto", "format of the frozen layers' features kept in memory; auto: fp32 where it is possible",
        choices=("auto", *CACHES),
    )  # fmt: skip


Dataset = ImageDataset | ClipDataset


def load_finetuning(config: FinetuneConfig) -> Training[FinetuneConfig]:
    """Load the model and the examples. Raises UsageError for missing settings, FormatError for a model that can't be
    read, DataError for a folder without examples."""
    if not config.model:
        raise UsageError("No model is given: edgelearn finetune MODEL --images DIR.")
    if (config.images is None) == (config.clips is None):
        raise UsageError("Give --images DIR or --clips DIR, one of them.")
    dataset = (
        picture_folder.load_folder(config.images) if config.images else clip_folder.load_folder(config.clips or "")
    )
    return finetuning_of(config, dataset, read_model(config.model, inputs=config.inputs, outputs=config.outputs))


def finetuning_of(config: FinetuneConfig, dataset: Dataset, file: ModelFile) -> Training[FinetuneConfig]:
    """The fine-tuning of a pretrained model, `file`, on pictures or clips, `dataset`."""
    network, head = _network(config, file, len(dataset.class_names))
    network.freeze().unfreeze(*head, *config.train)
    weights = network.initialize(config.seed)
    model = Model(network, weights | _body(network, file, head), config.device, config.seed)
    examples, preprocessing = examples_of(config, dataset, network, file)
    model.class_names, model.preprocessing = dataset.class_names, preprocessing
    train, test = split(examples, dataset.labels, config.seed)
    loss: Loss = SoftmaxCrossEntropy(config.label_smoothing)
    if is_reference(config.loss):
        loss = import_instance(config.loss, Loss)
    model.compile(config.optimizer_at(config.learning_rate or 0.01), loss, precision=PRECISIONS[config.precision])
    cache = config.cache
    if cache == "auto":
        cache = "fp32" if config.precision == "fp32" and split_frozen(network) is not None else None
    description = f"'{file.network.name}' of {Path(config.model).name}."
    cached = f"cached in {cache}" if cache else "not cached"
    lines = [
        dataset.description, *skipped_lines(dataset.skipped), f"Network: {description}",
        f"New classifier: {', '.join(head)}. Preprocessing: {preprocessing}. Frozen features: {cached}.",
    ]  # fmt: skip
    return Training(
        model=model, train=train, test=test, finish=finish_fine_tuning, data=data_entry(dataset, (train, test)),
        weights={"origin": config.model, "description": description, "sha256": digest(file.weights)}, sources=lines,
        preprocessing=preprocessing, record={"preprocessing": preprocessing},
        **fine_tuning(config, cache),
    )  # fmt: skip


FinetuneExperiment = Experiment("finetune", FinetuneConfig, load_finetuning)


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


def examples_of(config: FinetuneConfig, dataset: Dataset, network: Network, file: ModelFile) -> tuple[Source, dict]:
    """Return (the examples of a folder of pictures or clips, how they are made) for a network read from `file`."""
    if isinstance(dataset, ImageDataset):
        pictures: Pictures = pictures_of(network, file.preprocessing, config.pixels)

        def load(indices: np.ndarray, size: int) -> np.ndarray:
            return load_images(dataset, indices.tolist(), size)

        known = dataset.fingerprint()
        key = (known, pictures) if known is not None else None
        return PictureSource(len(dataset), pictures.size, load, pictures.examples, key), asdict(pictures)
    front_end, seconds = front_end_of(network, file.preprocessing, config.front_end)
    found = front_end(load_clips(dataset, rate=front_end.rate, seconds=seconds))
    sizes = tuple(n for n in network.input_shape if n > 1)
    if found.shape[1:] != sizes:  # frequencies first
        found = found.swapaxes(1, 2)
    return np.ascontiguousarray(found.reshape(-1, *network.input_shape)), {
        "front_end": features.to_json(front_end), "seconds": seconds
    }  # fmt: skip
