"""The trained network of a finished run: keep it, load it, name what is in pictures with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import records
from edgelearn.data.pictures import decode
from edgelearn.data.preprocess import standardize
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.interop import ModelFile, model_file
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Model
from edgelearn.train.files import load

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
    model_file.write(run.folder / FILE, file)


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
