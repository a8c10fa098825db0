"""Embedders in files, the package's own networks, and bundles.

An embedder is kept as an edgelearn model (`interop.safetensors`) with the front end of its features. The package has
three. Those of people's words and of speakers were trained on recordings of people; docs/results/keywords.md has their
model cards. The sample, a small one, was trained on synthesised words (`tools/pretrain_keywords.py`): other words than
those of the embedded sample, by other synthesised speakers. It has never heard a human voice.

A bundle is a folder with all that detects a user's words on another device, without edgelearn or with it:
"network.tflite" or "network.onnx" maps features to embeddings; "bundle.json" holds the rest: the words, the front end's
settings, the classifier with its arrays, and the threshold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from edgelearn import atomic, records
from edgelearn.data import features
from edgelearn.data import features as front_ends
from edgelearn.data.audio import ClipDataset
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.device import Device
from edgelearn.errors import DataError, EdgelearnError, FormatError, RunError
from edgelearn.interop import read_model, safetensors
from edgelearn.interop.formats import Written
from edgelearn.interop.safetensors import ModelFile

from .learners import DummyGenerator, Embedder, Head, Linear, Prototypes, Spotter, WithDummyPrototypes

P = TypeVar("P")


def save_embedder(path: str | Path, embedder: Embedder, notes: Mapping[str, str] | None = None) -> None:
    """Write an embedder, with its head and its generator of dummy prototypes, to a file in one step.

    Arguments:
    - `path`: the file.
    - `embedder`: its background, clips of other people, is not stored.
    - `notes`: more metadata, such as where the weights come from.

    Raises RunError if the file can't be written; a previous one then stays as it is.
    """
    preprocessing = {"front_end": features.to_json(embedder.front_end), "seconds": embedder.seconds}
    metadata, arrays = {"notes": dict(notes or {})}, {}
    for name, part in (("head", embedder.head), ("dummies", embedder.dummies)):
        if part is not None:
            arrays |= {f"{name}/{key}": value for key, value in vars(part).items() if isinstance(value, np.ndarray)}
            metadata[name] = {key: value for key, value in vars(part).items() if not isinstance(value, np.ndarray)}
    file = ModelFile(embedder.network, embedder.weights, preprocessing=preprocessing, metadata=metadata, arrays=arrays)
    safetensors.write_model_file(path, file)


def load_embedder(path: str | Path, device: str | Device | None = None) -> Embedder:
    """Read an embedder from a file. `device`: part of a device's name (default: chosen).

    Raises FormatError for a file that is damaged, holds something else, or is of a newer version.
    """
    file = safetensors.read_model_file(path)
    try:
        front_end = features.from_json(file.preprocessing["front_end"])
        seconds = float(file.preprocessing["seconds"])
        head, dummies = _part(file, "head", Head), _part(file, "dummies", DummyGenerator)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{path} holds a model but no embedder, or is damaged ({error!r}). Give a file that save_embedder wrote."
        ) from None
    return Embedder(file.network, file.weights, front_end, seconds, head, device, dummies)


def _part(file: ModelFile, name: str, kind: type[P]) -> P | None:
    """The head or the generator that a file holds, if any."""
    if name not in file.metadata:
        return None
    arrays = {key.partition("/")[2]: array for key, array in file.arrays.items() if key.startswith(f"{name}/")}
    return kind(**arrays, **file.metadata[name])


_HERE = Path(__file__).parent
PEOPLE, SPEAKERS = _HERE / "ds_resnet_people.safetensors", _HERE / "ds_resnet_speakers.safetensors"
SAMPLE = _HERE / "ds_cnn_synthesised.safetensors"
_OTHER_VOICES = 2  # seed of speakers that neither the networks nor the embedded sample have


def people_embedder(device: str | Device | None = None) -> Embedder:
    """The package's network of people's words, with embeddings of 128 values. `device`: part of a device's name
    (default: chosen)."""
    return load_embedder(PEOPLE, device)


def speaker_embedder(device: str | Device | None = None) -> Embedder:
    """The package's network that tells speakers apart, with embeddings of 64 values. `device`: part of a device's name
    (default: chosen)."""
    return load_embedder(SPEAKERS, device)


def sample_embedder(device: str | Device | None = None) -> Embedder:
    """The package's network of synthesised words, with embeddings of 64 values. `device`: part of a device's name
    (default: chosen)."""
    return load_embedder(SAMPLE, device)


def other_words(seed: int = 0) -> ClipDataset:
    """Clips of synthesised words that nobody has enrolled, to set a threshold by. `seed` draws the speakers."""
    return embedded_words(speakers=10, takes=1, seed=seed + _OTHER_VOICES)


NAME, VERSION = "bundle.json", 1
CLASSIFIERS = {kind.__name__: kind for kind in (Prototypes, WithDummyPrototypes, Linear)}


@dataclass(frozen=True, eq=False)
class KeywordBundle:
    """Enrolled words that were read from a folder.

    Arguments:
    - `spotter`: scores clips.
    - `words`: names, in the order of the scores.
    - `threshold`: least known score of a detection (default None: not set).
    """

    spotter: Spotter
    words: tuple[str, ...]
    threshold: float | None = None


class _Record(TypedDict):
    """The entries of bundle.json. `input`: shape of an example, in which `axes` has the order of the features' axes."""

    version: int
    network: str
    words: tuple[str, ...]
    threshold: float | None
    front_end: dict[str, Any]
    seconds: float
    input: tuple[int, ...]
    axes: tuple[str, ...]
    classifier: dict[str, Any]


def save_bundle(
    folder: str | Path, spotter: Spotter, words: Sequence[str], threshold: float | None = None,
    suffix: str = "tflite", calibration: np.ndarray | None = None, **options: Any,
) -> Written:  # fmt: skip
    """Write a spotter's network, front end and classifier to a new folder. Return what was written of the network.

    >>> spotter = vocabulary.enrol(embedder)
    >>> save_bundle("words.bundle", spotter, vocabulary.words, 0.8, full_integer=True, calibration=vocabulary.features)

    Arguments:
    - `folder`: its path.
    - `spotter`: the result of an enrolment.
    - `words`: names, in the order of the scores.
    - `threshold`: least known score of a detection (default None: the application sets it).
    - `suffix`: suffix of the network's file, "tflite" or "onnx".
    - `calibration`: features (n, frames, bands) that give the ranges for integers.
    - `options`: options of `Model.export`, such as `float16=True`, `int8=True`, or `full_integer=True` for TFLite.

    Raises DataError for a classifier that isn't made of arrays alone, or another number of words; RunError if the
    folder is there already or can't be written; FormatError as `Model.export`.
    """
    folder, embedder, classifier = Path(folder), spotter.embedder, spotter.classifier
    kind = next((name for name, each in CLASSIFIERS.items() if isinstance(classifier, each)), None)
    if kind is None:
        raise DataError(
            f"A bundle holds one of {', '.join(CLASSIFIERS)}, not {type(classifier).__name__}. Enrol the words by "
            f"'nearest-mean', 'dummy-prototypes' or 'fine-tune'."
        )
    if len(words) != spotter.num_classes:
        raise DataError(f"{len(words)} names for {spotter.num_classes} words: give each word's.")
    settings = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in
                asdict(classifier).items()}  # fmt: skip
    axes = ("bands", "frames") if embedder.bands_first else ("frames", "bands")
    record = _Record(
        version=VERSION, network=f"network.{suffix}", words=tuple(words), threshold=threshold,
        front_end=asdict(embedder.front_end), seconds=embedder.seconds, input=embedder.network.input_shape, axes=axes,
        classifier={"kind": kind, **settings},
    )  # fmt: skip
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{folder} is there already: remove it, or choose another name.") from None
    except OSError as error:
        raise RunError(f"{folder} can't be written ({error.strerror}). Choose another folder.") from None
    try:
        examples = None if calibration is None else embedder.examples(calibration)
        written = embedder.model.export(folder / record["network"], examples, **options)
        atomic.write_json(folder / NAME, record)
    except BaseException:
        for path in (*folder.iterdir(), folder):
            path.rmdir() if path.is_dir() else path.unlink()
        raise
    return written


def load_bundle(folder: str | Path, device: str | Device | None = None) -> KeywordBundle:
    """Read a bundle. Its network is computed in float32: scores are those of the spotter that was saved, to the
    rounding of its weights.

    Arguments:
    - `folder`: as `save_bundle` wrote it.
    - `device`: part of a device's name (default: chosen).

    Raises FormatError, naming the file, for one that is missing, damaged, or of a newer version.
    """
    path = Path(folder) / NAME
    try:
        record = records.parse(path.read_text(), _Record)
        if record["version"] != VERSION:
            raise FormatError(f"it is of version {record['version']}, and this edgelearn reads {VERSION}: update it")
        if Path(record["network"]).name != record["network"]:
            raise FormatError(f"'{record['network']:.100}' is no file of this folder")
        settings = dict(record["classifier"])
        kind = CLASSIFIERS[settings.pop("kind")]
        arrays: dict[str, Any] = {
            name: np.asarray(value, np.float32) if isinstance(value, list) else value
            for name, value in settings.items()
        }
        front_end = front_ends.from_json(json.dumps(record["front_end"]))
        file = read_model(path.parent / record["network"])
        embedder = Embedder(file.network, file.weights, front_end, record["seconds"], device=device)
        bundle = KeywordBundle(Spotter(embedder, kind(**arrays)), tuple(record["words"]), record["threshold"])
        if bundle.spotter.num_classes != len(bundle.words):
            raise FormatError(f"it has {len(bundle.words)} words and {bundle.spotter.num_classes} of the classifier")
    except (OSError, KeyError, TypeError, ValueError, EdgelearnError, records.RecordError) as error:
        raise FormatError(
            f"{path} is no bundle of keywords, or is damaged ({error!s:.300}). Give a folder that save_bundle wrote."
        ) from None
    return bundle
