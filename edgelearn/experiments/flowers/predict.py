"""Use a finished run's network on pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgelearn.data.pictures import decode
from edgelearn.data.preprocess import normalize
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.graph import Network
from edgelearn.interop import safetensors
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Model

Answer = list[tuple[str, float]] | str


def load_model(run: Run, device: str | None = None) -> Model:
    """The trained network of a finished flowers run. Raises RunError when it is another one, FormatError when its files
    are damaged."""
    if run.record["kind"] != "flowers":
        raise RunError(f"{run.id} is a run of '{run.record['kind']}': it has no network for pictures of flowers.")
    if run.status != "finished":
        raise RunError(f"{run.id} has not finished, so it has no trained network: edgelearn flowers --resume {run.id}")
    path = run.folder / "network.json"
    try:
        network = Network.from_json(path.read_text())
    except (OSError, UnicodeDecodeError, FormatError) as error:
        why = str(error).rstrip(".")
        raise FormatError(f"{path} can't be read ({why}). Restore it from a backup, or train again.") from None
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
