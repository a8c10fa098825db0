"""Ranges of activations from examples, for an export to int8 without a training with a Precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgelearn.errors import DataError
from edgelearn.graph import INPUT, Network
from edgelearn.graph.fuse import fuse
from edgelearn.interop.weights import Weights
from edgelearn.ops import LogSoftmax, Softmax
from edgelearn.ops.formats import Format
from edgelearn.ops.observers import InHindsightMinMax
from edgelearn.ops.quantize import FIELDS, first_record

BATCH = 8  # examples whose activations are held at once


def observed(network: Network) -> list[str]:
    """Return the layers whose outputs have a range: as a training with a Precision has them. Outputs of the network,
    and the logits in front of a softmax there, stay float32."""
    outputs = set(network.outputs)
    logits = {name for end in outputs if isinstance(network.nodes[end].op, LogSoftmax | Softmax)
              for name in network.nodes[end].inputs}  # fmt: skip
    stages = [stage.output for stage in fuse(network)]
    return [node.name for node in stages if not node.op.selects and node.name not in outputs | logits]


def calibrate(model: Any, x: np.ndarray, batch_size: int = BATCH) -> Weights:
    """Return records of the smallest and the largest value of every activation, as a training leaves them.

    Arguments:
    - `model`: a Model; it is left as it is.
    - `x`: examples of the kind that the exported model will get, (n, ...); a hundred are usually enough.
    - `batch_size`: examples that are computed at once (default 8).

    Raises DataError if there are no examples.
    """
    if not len(x):
        raise DataError("Calibration needs examples: give some of the kind that the model will get.")
    names = observed(model.network)
    whole = Network.from_json(model.network.to_json())
    whole.outputs = tuple(names) or whole.outputs
    probe = type(model)(whole, model.weights, model.device)
    ends: dict[str, tuple[float, float]] = {}
    for begin in range(0, len(x), batch_size):
        part = np.asarray(x[begin : begin + batch_size], np.float32)
        found = probe.predict(part, len(part))
        values = found if isinstance(found, dict) else {whole.outputs[0]: found}
        for name, array in {INPUT: part, **values}.items():
            low, high = ends.get(name, (np.inf, -np.inf))
            ends[name] = min(low, float(array.min())), max(high, float(array.max()))
    return {f"{name}/activations": _record(*ends[name]) for name in (INPUT, *names)}


def _record(low: float, high: float) -> np.ndarray:
    record = first_record(InHindsightMinMax())
    scale, zero = Format(8).parameters(np.float32(low), np.float32(high))
    known = {"scale": scale, "inverse": 1 / scale, "zero": zero, "low": low, "high": high, "least": low, "most": high,
             "next_low": low, "next_high": high}  # fmt: skip
    for field, value in known.items():
        record[FIELDS.index(field)] = value
    return record
