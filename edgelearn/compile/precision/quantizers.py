"""Quantization of a program's tensors: emits what rounds each of them, once it is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from edgelearn.compile.storage import Storage
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.formats import Format, NumberFormat, StoredType, has_range
from edgelearn.ops.quantize import (
    Quantizer,
    emit_measured_range,
    emit_next_range,
    emit_quantize,
    new_statistics,
    rule_of,
)
from edgelearn.ops.quantized_copy import emit_to_integers
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored
from edgelearn.ops.range_statistics import RangeStatistics
from edgelearn.ops.rows import parts
from edgelearn.ops.target import Target
from edgelearn.ops.tensor import Shape

from .precision import Precision, RangeMode
from .range_collector import RangeCollector
from .rounded_kernels import RoundedKernels

Emit = Callable[[Target], None]


class Quantizers:
    """Emits into a program's `prepare` and `micro` what rounds its tensors; a tensor in float32 is returned as it is.

    Arguments:
    - `precision`: formats and observers.
    - `mode`: how ranges are obtained (see Precision.mode).
    - `training`: also collect the statistics of tensors, in `statistics`.
    - `first`: statistics start anew.
    - `measure`: takes the jobs that measure kernels where updates do so from then on (default None: they don't).
    """

    def __init__(
        self,
        precision: Precision,
        storage: Storage,
        prepare: Emitter,
        micro: Emitter,
        mode: RangeMode,
        training: bool,
        first: bool,
        measure: Emitter | None = None,
    ) -> None:
        self.precision, self.storage, self.prepare, self.micro = precision, storage, prepare, micro
        self.mode, self.training, self.first = mode, training, first
        self.statistics = RangeCollector(precision, storage, training)
        self.kernels = RoundedKernels(precision, storage, prepare, self.statistics, measure)

    def input(self, layer: str, x: Tensor, integers: bool) -> Stored:
        """The network's input `x`, as `integers` if all its readers accept them. A format without a range rounds it in
        place: `x` may stay for the next pass, for which it is rounded already."""
        fmt = self.precision.format("activations", layer)
        if fmt is None:
            return x
        if not has_range(fmt):
            return self._encode(fmt, "activations", layer, x, x)
        integers = integers and self.stores("activations", layer)
        y = x if integers else self.micro.tensor("quantized", x.shape, block=x.block)
        return self._quantize(fmt, "activations", layer, x, y, integers)

    def activation(self, layer: str, x: Tensor) -> Stored:
        """The output of a layer."""
        return self._round("activations", layer, x, self.stores("activations", layer))

    def norm_input(self, layer: str, y: Tensor) -> Stored:
        """The output of a linear layer that batch statistics normalize."""
        return self._round("norm_inputs", layer, y, self.stores("norm_inputs", layer))

    def gradient(self, layer: str, dy: Tensor, integers: bool = False) -> Stored:
        """The gradient of a linear layer's output, once every reader has added its share. A format without a range
        rounds it in place: it is short-lived."""
        fmt = self.precision.format("gradients", layer)
        if fmt and not has_range(fmt):
            return self._encode(fmt, "gradients", layer, dy, dy)
        return self._round("gradients", layer, dy, integers)

    def selected(self, inputs: list[Stored], y: Tensor) -> Stored:
        """The output of a layer that only selects among its inputs' values: stored like them."""
        x = inputs[0]
        if not isinstance(x, QuantizedTensor):
            return y
        encoded = replace(x, tensor=self.micro.tensor("encoded activations", y.shape, dtype=x.tensor.dtype))
        if not has_range(x.format):
            if any(not isinstance(other, QuantizedTensor) or other.format != x.format for other in inputs):
                return y
            x.format.emit_encode(self.micro, y, encoded.tensor)
            return encoded
        if len(inputs) > 1:  # with different ranges
            return y
        exact = replace(x.format, rounding="nearest")  # the values are what integers stand for
        emit_to_integers(self.micro, y, replace(encoded, format=exact))
        return encoded

    def rounds(self, kind: str, layer: str) -> bool:
        return self.precision.format(kind, layer) is not None

    def quantizes(self, kind: str, layer: str) -> bool:
        """True if a tensor is rounded to integers, stored or simulated."""
        return has_range(self.precision.format(kind, layer))

    def stores(self, kind: str, layer: str) -> bool:
        """True if a tensor may be stored as integers."""
        fmt = self.precision.format(kind, layer)
        return not self.precision.simulated and fmt is not None and fmt.storage == "int8"

    def knows_range(self, kind: str, layer: str) -> bool:
        """True if a tensor is stored as integers by a range that is known before it is computed."""
        ranged = self.stores(kind, layer) and self.quantizes(kind, layer)
        return ranged and self.precision.is_static(kind, self.mode, self.training)

    def known_range(self, kind: str, layer: str) -> Quantizer:
        """The quantizer of a tensor whose range is known; the range comes into use."""
        fmt = self.precision.format(kind, layer)
        assert has_range(fmt)
        q = self._quantizer(fmt, kind, layer)
        emit_next_range(self.prepare, q)
        return q

    def write(self, kind: str, layer: str, shape: Shape, emit: Emit, integers: bool = True) -> Stored:
        """The tensor that `emit` writes to its target, quantized: as `integers`, or as the floats that these stand for.
        With a static range `emit` quantizes it; else it writes floats, whose statistics give the range."""
        fmt = self.precision.format(kind, layer)
        assert has_range(fmt)
        static = self.precision.is_static(kind, self.mode, self.training)
        q = self.known_range(kind, layer) if static else self._quantizer(fmt, kind, layer)
        if integers:
            y = self._integers(kind, q, shape)
        else:
            y = QuantizedTensor(self.micro.tensor(f"quantized {kind}", shape), q.record, q.format, q.name)
        if static:
            target = Target(y, statistics=self._statistics(q, y.tensor))
            if kind == "gradients":  # which are never recomputed
                emit(target)
            else:
                self._emit_once(lambda statistics: emit(replace(target, statistics=statistics)), target.statistics)
        else:
            values = self.micro.tensor(f"{kind} as floats", shape) if integers else y.tensor
            statistics = new_statistics(self.micro, q, values)
            emit(Target(values, statistics=statistics))
            emit_measured_range(self.micro, q, values, statistics)
            self._emit_quantize(q, values, y.tensor)
        return y if integers else y.tensor

    def _round(self, kind: str, layer: str, x: Tensor, integers: bool) -> Stored:
        fmt = self.precision.format(kind, layer)
        if fmt is None:
            return x
        if has_range(fmt):
            return self._quantize(fmt, kind, layer, x, x, integers)
        stored = not self.precision.simulated and (kind == "activations" or StoredType.has(fmt.storage))
        y = self.micro.tensor(f"encoded {kind}", x.shape, dtype=fmt.storage) if stored else x
        return self._encode(fmt, kind, layer, x, y)

    def _encode(self, fmt: NumberFormat, kind: str, layer: str, x: Tensor, y: Tensor) -> Stored:
        """In a format without a range."""
        name = f"{layer}/{kind}"
        statistics = self.statistics.of_rangeless(name, parts(self.micro, x), not self.first)
        self._emit_once(partial(fmt.emit_encode, self.micro, x, y), statistics)
        return y if y.dtype == "float32" else QuantizedTensor(y, None, fmt, name)

    def _quantizer(self, fmt: Format, kind: str, layer: str) -> Quantizer:
        return self.storage.quantizer(f"{layer}/{kind}", fmt, self.precision.observer_of(kind))

    def _integers(self, kind: str, q: Quantizer, shape: Shape, block: int = 16) -> QuantizedTensor:
        tensor = self.micro.tensor(f"quantized {kind}", shape, block=block, dtype="int8")
        return QuantizedTensor(tensor, q.record, q.format, q.name)

    def _quantize(self, fmt: Format, kind: str, layer: str, x: Tensor, y: Tensor, integers: bool) -> Stored:
        q = self._quantizer(fmt, kind, layer)
        if self.precision.is_static(kind, self.mode, self.training):
            emit_next_range(self.prepare, q)
        else:
            emit_measured_range(self.micro, q, x)
        encoded = self._integers(kind, q, x.shape, x.block) if integers else None
        self._emit_quantize(q, x, encoded.tensor if encoded else y)
        return encoded or y

    def _emit_quantize(self, q: Quantizer, x: Tensor, y: Tensor) -> None:
        self._emit_once(partial(emit_quantize, self.micro, q, x, y), self._statistics(q, x))

    def _emit_once(self, emit: Callable[[RangeStatistics | None], None], statistics: RangeStatistics | None) -> None:
        """Emit a launch that collects statistics the first time, but not when it is recomputed."""
        emit(statistics)
        if statistics:
            with self.micro.replay():
                emit(None)

    def _statistics(self, q: Quantizer, x: Tensor) -> RangeStatistics | None:
        return self.statistics.of(q, parts(self.micro, x), rule_of(q.observer), not self.first)
