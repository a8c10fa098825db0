"""Ranges of activations from examples, for an export to int8 without a training with a Precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgelearn.errors import DataError
from edgelearn.graph import Network
from edgelearn.interop.weights import Weights
from edgelearn.ops.formats import Format
from edgelearn.ops.observers import InHindsightMinMax
from edgelearn.ops.quantize import FIELDS, first_record

BATCH = 8  # examples whose activations are held at once


def calibrate(model: Any, x: Any, batch_size: int = BATCH) -> Weights:
    """Return records of the smallest and the largest value of every activation, as a training leaves them, and of the
    network's outputs.

    Arguments:
    - `model`: a Model; it is left as it is.
    - `x`: examples of the kind that the exported model will get, (n, ...), or a dictionary of them by input; a hundred
      are usually enough.
    - `batch_size`: examples that are computed at once (default 8).

    Raises DataError if there are no examples.
    """
    from edgelearn.interop.exporting.inference import ranged  # with the exporters, which an import doesn't wait for

    inputs = x if isinstance(x, Mapping) else {next(iter(model.network.inputs)): x}
    count = len(next(iter(inputs.values())))
    if not count:
        raise DataError("Calibration needs examples: give some of the kind that the model will get.")
    names = ranged(model.network)
    whole = Network.from_json(model.network.to_json())
    whole.outputs = tuple(names) or whole.outputs
    probe = type(model)(whole, model.weights, model.device)
    ends: dict[str, tuple[float, float]] = {}
    for begin in range(0, count, batch_size):
        part = {name: np.asarray(a[begin : begin + batch_size], np.float32) for name, a in inputs.items()}
        size = min(batch_size, count - begin)
        found = probe.predict(part if isinstance(x, Mapping) else next(iter(part.values())), size)
        values = found if isinstance(found, dict) else {whole.outputs[0]: found}
        for name, array in (part | values).items():
            low, high = ends.get(name, (np.inf, -np.inf))
            ends[name] = min(low, float(array.min())), max(high, float(array.max()))
    return {f"{name}/activations": _record(*ends[name]) for name in (*inputs, *names)}


def _record(low: float, high: float) -> np.ndarray:
    record = first_record(InHindsightMinMax())
    scale, zero = Format(8).parameters(np.float32(low), np.float32(high))
    known = {"scale": scale, "inverse": 1 / scale, "zero": zero, "low": low, "high": high, "least": low, "most": high,
             "next_low": low, "next_high": high}  # fmt: skip
    for field, value in known.items():
        record[FIELDS.index(field)] = value
    return record
