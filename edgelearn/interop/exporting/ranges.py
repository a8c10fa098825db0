"""Int8 for inference, from the range statistics that a training with a Precision left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Node
from edgelearn.interop.weights import Weights
from edgelearn.ops import LogSoftmax, Op, Sigmoid, Softmax, Tanh
from edgelearn.ops.formats import Format
from edgelearn.ops.quantize import FIELDS

from .graph import InferenceGraph, Quantization, Value

LARGEST_BIAS = 1 << 30  # of an int32 bias, with room for the sum of products
_SCALE, _ZERO, _LOW, _HIGH = (FIELDS.index(name) for name in ("scale", "zero", "low", "high"))
_NEXT_LOW, _NEXT_HIGH = (FIELDS.index(name) for name in ("next_low", "next_high"))


# Quantizations that TFLite prescribes, by the op: https://ai.google.dev/edge/litert/models/quantization_spec
FIXED: dict[type[Op], Quantization] = {
    LogSoftmax: Quantization(np.asarray(16 / 256, np.float32), 127),
    Sigmoid: Quantization(np.asarray(1 / 256, np.float32), -128),
    Softmax: Quantization(np.asarray(1 / 256, np.float32), -128),
    Tanh: Quantization(np.asarray(1 / 128, np.float32)),
}


SIX = Quantization(np.asarray(6 / 255, np.float32), -128)  # of relu6


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

    def quantization(self, value: Value) -> Quantization | None:
        """The quantization of a value of the graph; None for float32."""
        return self._quantizations.get(value)

    def quantize(self, graph: InferenceGraph, name: str, y: Value, node: Node | None = None, *inputs: Value) -> Value:
        """Quantize the output of a layer, or the network's input, by its range. Without a range it stays float32.

        Arguments:
        - `name`, `node`: the layer; no node for the network's input.
        - `y`, `inputs`: its output and inputs in the graph. An output that only selects among the inputs has their
          quantization, or one that holds all their ranges.
        """
        if y in self._quantizations:  # the layer's input, as it is
            return y
        record = self.records.get(f"{name}/activations")
        found = [self._quantizations.get(x) for x in inputs]
        known = [q for q in found if q is not None]
        if node is not None and type(node.op) in FIXED and known:
            quantization = FIXED[type(node.op)]
        elif record is not None:
            low, high = record[[_NEXT_LOW, _NEXT_HIGH]]
            quantization = _quantization(*(record[[_LOW, _HIGH]] if low == high else (low, high)))
        elif node is not None and node.op.selects and known and len(known) == len(found):
            quantization = known[0] if all(q.same(known[0]) for q in known) else _union(known)
        else:
            return y
        return self.apply(graph, y, quantization)

    def of_sum(self, x: Value, y: Value) -> Quantization:
        """A quantization for all sums of two quantized values."""
        (low, high), (more_low, more_high) = (_ends(self._quantizations[value]) for value in (x, y))
        return _quantization(low + more_low, high + more_high)

    def apply(self, graph: InferenceGraph, y: Value, quantization: Quantization) -> Value:
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
    lows, highs = zip(*map(_ends, quantizations), strict=True)
    return _quantization(min(lows), max(highs))


def _ends(quantization: Quantization) -> tuple[float, float]:
    """The lowest and the highest value."""
    low, high = (float(quantization.scale) * (end - quantization.zero) for end in (-128, 127))
    return low, high


def _levels(record: np.ndarray | None) -> int | None:
    """The highest integer of weights that were trained with one symmetric range; None for others."""
    if record is None or record[_ZERO] != 0 or record[_SCALE] <= 0:
        return None
    return min(round(float(max(-record[_LOW], record[_HIGH])) / float(record[_SCALE])), 127) or None
