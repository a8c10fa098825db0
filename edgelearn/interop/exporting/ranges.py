"""Int8 for inference, from the range statistics that a training with a Precision left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.interop.weights import Weights
from edgelearn.ops.formats import Format
from edgelearn.ops.quantize import FIELDS

from .graph import InferenceGraph, Quantization, Value

LARGEST_BIAS = 1 << 30  # of an int32 bias, with room for the sum of products
_SCALE, _ZERO, _LOW, _HIGH = (FIELDS.index(name) for name in ("scale", "zero", "low", "high"))
_NEXT_LOW, _NEXT_HIGH = (FIELDS.index(name) for name in ("next_low", "next_high"))


class Ranges:
    """Quantizes activations by their ranges, and kernels by their own.

    Arguments:
    - `records`: range statistics by "layer/kind", float32 (16,), as in ModelFile.

    Raises FormatError if there are no ranges of activations.
    """

    def __init__(self, records: Weights) -> None:
        self.records = records
        self._quantizations: dict[Value, Quantization] = {}
        if not any(name.endswith("/activations") for name in records):
            raise FormatError(
                "The model has no ranges of activations, which int8 needs. Give examples (calibration=x; --images DIR) "
                "or train it with Precision(weights=Format(8, symmetric=True), activations=Format(8))."
            )

    def quantize(self, graph: InferenceGraph, layer: str, y: Value, selected: Sequence[Value] = ()) -> Value:
        """Quantize a layer's output by its range. An output that only selects among the inputs `selected` has their
        quantization, or one that holds all their ranges. Without a range the output stays float32."""
        record = self.records.get(f"{layer}/activations")
        if record is not None:
            low, high = record[[_NEXT_LOW, _NEXT_HIGH]]
            quantization = _quantization(*(record[[_LOW, _HIGH]] if low == high else (low, high)))
        else:
            found = [self._quantizations.get(x) for x in selected]
            known = [q for q in found if q is not None]
            if not found or len(known) < len(found):
                return y
            quantization = known[0] if all(q.same(known[0]) for q in known) else _union(known)
        if any(y is x for x in selected):  # nothing was computed
            return y
        quantized = graph.quantize(y, quantization)
        self._quantizations[quantized] = quantization
        return quantized

    def kernel(
        self, graph: InferenceGraph, layer: str, kernel: np.ndarray, axis: int, factors: np.ndarray | None,
        bias: np.ndarray | None, x: Value,
    ) -> Value:  # fmt: skip
        """The constant of a kernel.

        Arguments:
        - `axis`: of the output channels, each of which has a scale.
        - `factors`: what a folded BatchNormalization multiplies the channels by. Integers of a kernel that was trained
          with one range stay as they were: the factors go into the scales.
        - `bias`, `x`: what is added, and the input; int32 must hold bias / (scale of x * scale of the kernel).
        """
        others = tuple(i for i in range(kernel.ndim) if i != axis)
        factors = np.ones(kernel.shape[axis]) if factors is None else factors
        folded = kernel * np.expand_dims(factors, others)
        quantization = self._quantizations.get(x)
        if quantization is None:  # a float32 layer
            return graph.constant(np.float32(folded), "kernel")
        scales = np.abs(kernel).max(others) / 127
        if (levels := _levels(self.records.get(f"{layer}/weights"))) is not None:
            scales = np.full_like(scales, np.abs(kernel).max() / levels)
        scales = np.where(scales > 0, scales, 1) * np.where(factors != 0, np.abs(factors), 1)
        if bias is not None:
            scales = np.maximum(scales, np.abs(bias) / (quantization.scale.astype(np.float64) * LARGEST_BIAS))
        own = Quantization(scales.astype(np.float32), 0, axis)
        return graph.constant(own.decode(own.encode(folded)), "kernel", own)


def _quantization(low: float, high: float) -> Quantization:
    scale, zero = Format(8).parameters(np.float32(low), np.float32(high))
    return Quantization(np.asarray(scale, np.float32), int(zero))


def _union(quantizations: Sequence[Quantization]) -> Quantization:
    """A quantization whose range holds those of all."""
    ends = [[float(q.scale) * (end - q.zero) for end in (-128, 127)] for q in quantizations]
    return _quantization(min(low for low, _ in ends), max(high for _, high in ends))


def _levels(record: np.ndarray | None) -> int | None:
    """The highest integer of weights that were trained with one symmetric range; None for others."""
    if record is None or record[_ZERO] != 0 or record[_SCALE] <= 0:
        return None
    return min(round(float(max(-record[_LOW], record[_HIGH])) / float(record[_SCALE])), 127) or None
