"""The difference between an import and the integers of its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgelearn.errors import EdgelearnError
from edgelearn.interop import find_format
from edgelearn.interop.builder import Translation
from edgelearn.interop.canonical import Quantization

from ..model import Model

EXAMPLES, SEED = 8, 0


def difference(path: Path, translation: Translation) -> str:
    """Return a sentence on how far predictions are from those of the format's runtime, for random examples; "" for a
    file whose activations are floats, or of a format without a runtime."""
    found = find_format(path).graph
    tensors = translation.graph.tensors
    computed = [tensors[name] for o in translation.graph.operators for name in o.outputs if name in tensors]
    if found is None or found.run is None or not any(info.quantization for info in computed):
        return ""
    try:
        file, rng = translation.model_file(), np.random.default_rng(SEED)
        inputs = {
            name: _examples(rng, shape, translation.quantization.get(name))
            for name, shape in file.network.inputs.items()
        }
        theirs = found.run(path, list(inputs.values()))
        predicted = Model(file.network, file.weights).predict(inputs if len(inputs) > 1 else inputs.popitem()[1])
    except EdgelearnError as error:
        return f"Difference of predictions to the file's integers: unknown. {error}"
    ours = [y.reshape(EXAMPLES, -1) for y in (predicted.values() if isinstance(predicted, dict) else [predicted])]
    if [y.shape for y in ours] != [y.shape for y in theirs]:
        return "Difference of predictions to the file's integers: unknown, since outputs have other shapes."
    worst = max(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in zip(ours, theirs, strict=True))
    same = int((ours[0].argmax(1) == theirs[0].argmax(1)).sum())
    return (
        f"Predictions differ from those of the file's integers by at most {worst:.2%} of the largest value, for "
        f"{EXAMPLES} random examples (seed {SEED}); the largest output is the same in {same}."
    )


def _examples(rng: np.random.Generator, shape: tuple[int, ...], quantization: Quantization | None) -> np.ndarray:
    """Values that the input's integers can have, each as likely; of the normal distribution without integers."""
    if quantization is None:
        return rng.standard_normal((EXAMPLES, *shape)).astype(np.float32)
    limits = np.iinfo(quantization.dtype)
    integers = rng.integers(limits.min, limits.max, (EXAMPLES, *shape), endpoint=True)
    return ((integers - quantization.zero_point[0]) * quantization.scale[0]).astype(np.float32)
