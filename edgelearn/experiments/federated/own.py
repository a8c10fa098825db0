"""Data and a network of one's own for a federation: arrays, pictures or recordings, and a model from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data.audio import load_folder as load_clips
from edgelearn.data.draws import stratified_split
from edgelearn.data.pictures import load_folder as load_pictures
from edgelearn.display import plural
from edgelearn.errors import DataError
from edgelearn.experiments.finetune import FinetuneConfig, data_entry, digest, examples_of
from edgelearn.graph import Network, replace_head
from edgelearn.interop import ModelFile, read_model
from edgelearn.interop.state_dict import read_arrays
from edgelearn.train import Subset
from edgelearn.train.sources import Source

Labelled = tuple[Source, np.ndarray]  # examples, and their int labels (n,)
_SHARE = 0.8  # of the examples of a class that train, where no others are there to test


@dataclass(frozen=True)
class Own:
    """Data, network and partition of a federation of one's own.

    Arguments:
    - `network`, `weights`: the network of the file, with a new classifier if the data has another number of classes,
      and its weights.
    - `train`, `test`: (source of examples, int labels).
    - `groups`, `test_groups`: name of each example's group, such as its speaker; None: there are none.
    - `data`, `origin`: entries of the run's record on the data and on the weights.
    - `preprocessing`: how examples are made of pictures or recordings.
    """

    network: Network
    weights: dict[str, np.ndarray]
    train: Labelled
    test: Labelled
    groups: np.ndarray | None
    test_groups: np.ndarray | None
    data: dict[str, Any]
    origin: dict[str, Any]
    preprocessing: Mapping[str, Any]


def load_own(data: str, model: str, seed: int, pixels: str | None = None, front_end: str | None = None) -> Own:
    """Load examples and the network that will learn them.

    Arguments:
    - `data`: a file .npz with `x` (n, ...) and int `y` (n,), perhaps int `groups` (n,), `x_test` and `y_test`; or a
      folder with a subfolder of pictures, or of recordings, for each class. Without test examples a fifth of each class
      is held out.
    - `model`: a model's file, of any format that is read.
    - `seed`: draws the examples that are held out, and a new classifier.
    - `pixels`, `front_end`: what pictures and recordings become where the model doesn't say, as of FinetuneConfig.

    Raises DataError for data that can't be used, FormatError for files that can't be read.
    """
    file = read_model(model)
    folder = Path(data)
    if folder.is_dir():
        config = FinetuneConfig(model=model, images=data, pixels=pixels, front_end=front_end)
        x, y, groups, entry, preprocessing, test = _of_folder(folder, file, config)
    else:
        x, y, groups, entry, preprocessing, test = _of_arrays(folder, file)
    if test is None:
        parts = stratified_split(y, _SHARE, seed)
        train, test = ((Subset(x, part), y[part]) for part in parts)
        groups, test_groups = (None if groups is None else groups[part] for part in parts)
    else:
        train, test_groups = (x, y), None
    network = file.network
    if network.output.shape != (len(entry["classes"]),):
        network = replace_head(network, len(entry["classes"]))
    drawn = network.initialize(seed)
    kept = {n: a for n, a in file.weights.items() if n in drawn and drawn[n].shape == a.shape}
    description = f"'{file.network.name}' of {Path(model).name}."
    if new := sorted({name.partition("/")[0] for name in drawn if name not in kept}):
        description += f" Drawn from seed {seed}: {', '.join(new)}."
    origin = {"origin": model, "description": description, "sha256": digest(file.weights)}
    return Own(network, drawn | kept, train, test, groups, test_groups, entry, origin, preprocessing)


_Found = tuple[Source, np.ndarray, np.ndarray | None, dict[str, Any], Mapping[str, Any], Labelled | None]


def _of_folder(folder: Path, file: ModelFile, config: FinetuneConfig) -> _Found:
    """Examples of a folder: pictures, or else recordings."""
    try:
        dataset, groups = load_pictures(folder), None
    except DataError:
        dataset = load_clips(folder)
        groups = dataset.speakers if dataset.speakers.all() else None
    x, preprocessing = examples_of(config, dataset, file.network, file)
    entry = data_entry(dataset, 2 * [(Subset(x, np.arange(len(dataset))), dataset.labels)])
    return x, dataset.labels, groups, entry, preprocessing, None


def _of_arrays(path: Path, file: ModelFile) -> _Found:
    """Examples of arrays in a file."""
    arrays = read_arrays(path)
    if missing := [name for name in ("x", "y") if name not in arrays]:
        raise DataError(f"{path} has no array '{missing[0]}'. It needs x (examples) and y (their int labels).")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path} has one of x_test and y_test. Give both, or none.")
    shape, sides = file.network.input_shape, []
    for end in ("", "_test") if "x_test" in arrays else ("",):
        x, y = arrays[f"x{end}"], arrays[f"y{end}"]
        if x.shape[1:] != shape or x.dtype.kind not in "fiu":
            raise DataError(f"x{end} of {path} has shape {x.shape} and type {x.dtype}; the network takes (n, {shape}).")
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu" or not len(y) or y.min() < 0:
            raise DataError(f"y{end} of {path} must have an int label from 0 for each of {len(x)} examples.")
        sides.append((x.astype(np.float32), y.astype(np.int64)))
    groups = arrays.get("groups")
    if groups is not None and groups.shape != sides[0][1].shape:
        raise DataError(
            f"groups of {path} has shape {groups.shape}: give a name for each of {len(sides[0][1])} examples."
        )
    classes = 1 + int(max(y.max() for _, y in sides))
    found = hashlib.sha256(b"".join(array.tobytes() for side in sides for array in side)).hexdigest()
    entry = {
        "origin": f"{path} {found[:12]}",
        "description": f"{plural(sum(len(y) for _, y in sides), 'example')} of {path.name}.",
        "classes": [str(number) for number in range(classes)], "skipped": 0,
    }  # fmt: skip
    (x, y), *tests = sides
    return x, y, None if groups is None else groups.astype(str), entry, {}, tests[0] if tests else None
