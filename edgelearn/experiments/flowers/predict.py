"""Use a finished run's network on pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgelearn.data.pictures import decode
from edgelearn.data.preprocess import normalize
from edgelearn.errors import DataError, RunError
from edgelearn.graph import Network
from edgelearn.io import safetensors
from edgelearn.runs import Run, RunStore
from edgelearn.train import Model

Answer = list[tuple[str, float]] | str


def load_model(run: Run, device: str | None = None) -> Model:
    """The trained network of a finished run. Raises RunError when the run has not finished."""
    if run.status != "finished":
        raise RunError(f"{run.id} has not finished, so it has no trained network: edgelearn flowers --resume {run.id}")
    network = Network.from_json((run.folder / "network.json").read_text())
    return Model(network, safetensors.read_weights(run.folder / "weights.safetensors"), device)


def newest_finished(store: RunStore) -> Run:
    """Raises RunError when there is none."""
    for summary in store.list():
        if summary.kind == "flowers" and summary.status == "finished":
            return store.open(summary.id)
    raise RunError("There is no finished flowers run yet: run `edgelearn flowers` first.")


def predict(
    paths: Sequence[str], store: RunStore, run: str | None = None, device: str | None = None, top: int = 3
) -> Iterator[tuple[str, Answer]]:
    """(path, [(class, probability), ...] best first) for each picture, or (path, what is wrong with it)."""
    chosen = store.open(run) if run else newest_finished(store)
    model = load_model(chosen, device)
    names = chosen.record["data"]["classes"]
    size = model.network.input_shape[0]
    for path in paths:
        try:
            picture = decode(Path(path), size, path)
        except DataError as error:
            yield path, str(error)
        else:
            shares = model.predict(normalize(picture[None]))[0]
            best = np.argsort(-shares)[:top]
            yield path, [(names[i], float(shares[i])) for i in best]
