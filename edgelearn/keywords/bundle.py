"""Bundle: a folder with all that detects a user's words on another device, without edgelearn or with it.

"network.tflite" or "network.onnx" maps features to embeddings; "bundle.json" holds the rest: the words, the front end's
settings, the classifier with its arrays, and the threshold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from edgelearn import atomic, records
from edgelearn.data.audio import features as front_ends
from edgelearn.device import Device
from edgelearn.errors import DataError, EdgelearnError, FormatError, RunError
from edgelearn.interop import read_model
from edgelearn.interop.writers import Written

from .learners import Embedder, Linear, Prototypes, Spotter, WithDummyPrototypes

NAME, VERSION = "bundle.json", 1
CLASSIFIERS = {kind.__name__: kind for kind in (Prototypes, WithDummyPrototypes, Linear)}


@dataclass(frozen=True, eq=False)
class Bundle:
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
    - `suffix`: of the network's file, "tflite" or "onnx".
    - `calibration`: features (n, frames, bands) that give the ranges for integers.
    - `options`: of `Model.export`, such as `float16=True`, `int8=True`, or `full_integer=True` for TFLite.

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


def load_bundle(folder: str | Path, device: str | Device | None = None) -> Bundle:
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
        bundle = Bundle(Spotter(embedder, kind(**arrays)), tuple(record["words"]), record["threshold"])
        if bundle.spotter.num_classes != len(bundle.words):
            raise FormatError(f"it has {len(bundle.words)} words and {bundle.spotter.num_classes} of the classifier")
    except (OSError, KeyError, TypeError, ValueError, EdgelearnError, records.RecordError) as error:
        raise FormatError(
            f"{path} is no bundle of keywords, or is damaged ({error!s:.300}). Give a folder that save_bundle wrote."
        ) from None
    return bundle
