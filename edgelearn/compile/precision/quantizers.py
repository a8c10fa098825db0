"""Where the tensors of a program are rounded: each kind as soon as it is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from edgelearn.compile.storage import Storage
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.formats import Float16, Format
from edgelearn.ops.half import emit_halved
from edgelearn.ops.quantize import (
    Quantizer,
    RangeStatistics,
    emit_measured_range,
    emit_next_range,
    emit_quantize,
    rule_of,
    statistics,
)
from edgelearn.ops.quantized_copy import emit_to_integers
from edgelearn.ops.quantized_tensor import QuantizedTensor
from edgelearn.ops.rows import parts
from edgelearn.ops.stored import Stored
from edgelearn.ops.tensor import Shape

from .precision import Precision, RangeMode
from .range_collector import RangeCollector
from .rounded_kernels import RoundedKernels

Emit = Callable[[Tensor | QuantizedTensor, RangeStatistics | None], None]


class Quantizers:
    """Emits, into a program's `prepare` and `micro`, what rounds its tensors as `precision` says; a tensor whose format
    is float32 comes back as it is. `mode` is how ranges are got (see Precision.mode); `training` also leaves what was
    found in `noted`; `first` says that findings start anew."""

    def __init__(
        self,
        precision: Precision,
        storage: Storage,
        prepare: Emitter,
        micro: Emitter,
        mode: RangeMode,
        training: bool,
        first: bool,
    ) -> None:
        self.precision, self.storage, self.prepare, self.micro = precision, storage, prepare, micro
        self.mode, self.training, self.first = mode, training, first
        self.noted = RangeCollector(precision, storage, training)
        self.kernels = RoundedKernels(precision, storage, prepare, self.noted)

    def input(self, layer: str, x: Tensor, integers: bool) -> Stored:
        """The network's input `x`, as `integers` where its readers can do with these. Halves are made where it lies: x
        may be there for the next pass too, for which it is rounded already."""
        if not self.rounds("activations", layer):
            return x
        if isinstance(self.precision.format("activations", layer), Float16):
            return self._halve("activations", layer, x, x)
        integers = integers and self.stores("activations", layer)
        y = x if integers else self.micro.tensor("quantized", x.shape, block=x.block)
        return self._quantize("activations", layer, x, y, integers)

    def activation(self, layer: str, x: Tensor) -> Stored:
        """What a layer has written."""
        return self._round("activations", layer, x, self.stores("activations", layer))

    def norm_input(self, layer: str, y: Tensor) -> Stored:
        """What a linear layer has written for batch statistics to normalize."""
        return self._round("norm_inputs", layer, y, self.stores("norm_inputs", layer))

    def gradient(self, layer: str, dy: Tensor, integers: bool = False) -> Tensor | QuantizedTensor:
        """The gradient of a linear layer's output, once every reader of that has added its share. Halves stay where
        floats lie: they don't last."""
        if isinstance(self.precision.format("gradients", layer), Float16):
            return self._halve("gradients", layer, dy, dy)
        return self._round("gradients", layer, dy, integers)

    def chosen(self, inputs: list[Stored], y: Tensor) -> Stored:
        """What a layer has written that only chooses among its inputs: of the same values, stored like them."""
        if all(isinstance(x, Tensor) and x.dtype == "float16" for x in inputs):
            halves = self.micro.tensor("halves", y.shape, dtype="float16")
            emit_halved(self.micro, y, halves)
            return halves
        if len(inputs) == 1 and isinstance(inputs[0], QuantizedTensor):
            x = inputs[0]
            integers = replace(x, tensor=self.micro.tensor("quantized activations", y.shape, dtype="int8"))
            exact = replace(x.format, rounding="nearest")  # they are what integers stand for
            emit_to_integers(self.micro, y, replace(integers, format=exact))
            return integers
        return y

    def rounds(self, kind: str, layer: str) -> bool:
        return self.precision.format(kind, layer) is not None

    def quantizes(self, kind: str, layer: str) -> bool:
        """Whether a tensor is rounded to integers, stored or simulated."""
        return isinstance(self.precision.format(kind, layer), Format)

    def stores(self, kind: str, layer: str) -> bool:
        """Whether a tensor may be kept as integers."""
        fmt = self.precision.format(kind, layer)
        return not self.precision.simulated and fmt is not None and fmt.storage == "int8"

    def write(self, kind: str, layer: str, shape: Shape, emit: Emit, integers: bool = True) -> Tensor | QuantizedTensor:
        """What `emit` writes, quantized: it does so itself where the range is known by then, else it writes floats,
        whose range is what is found of them. As `integers`, or as the floats that these stand for."""
        q = self._quantizer(kind, layer)
        if integers:
            y = self._integers(kind, q, shape)
        else:
            y = QuantizedTensor(self.micro.tensor(f"quantized {kind}", shape), q.record, q.format, q.name)
        if self.precision.is_static(kind, self.mode, self.training):
            emit_next_range(self.prepare, q)
            found = self._findings(q, y.tensor)
            if kind == "gradients":  # which are never made again
                emit(y, found)
            else:
                self._emit_once(partial(emit, y), found)
        else:
            values = self.micro.tensor(f"{kind} as floats", shape) if integers else y.tensor
            found = statistics(self.micro, q, values)
            emit(values, found)
            emit_measured_range(self.micro, q, values, found)
            self._emit_quantize(q, values, y.tensor)
        return y if integers else y.tensor

    def _round(self, kind: str, layer: str, x: Tensor, integers: bool) -> Stored:
        fmt = self.precision.format(kind, layer)
        if fmt is None:
            return x
        if isinstance(fmt, Float16):
            y = x if self.precision.simulated else self.micro.tensor(f"{kind} in halves", x.shape, dtype="float16")
            return self._halve(kind, layer, x, y)
        return self._quantize(kind, layer, x, x, integers)

    def _halve(self, kind: str, layer: str, x: Tensor, y: Tensor) -> Tensor:
        found = self.noted.of_halves(f"{layer}/{kind}", parts(self.micro, x), not self.first)
        self._emit_once(partial(emit_halved, self.micro, x, y), found)
        return y

    def _quantizer(self, kind: str, layer: str) -> Quantizer:
        fmt = self.precision.format(kind, layer)
        return self.storage.quantizer(f"{layer}/{kind}", fmt, self.precision.observer_of(kind))

    def _integers(self, kind: str, q: Quantizer, shape: Shape, block: int = 16) -> QuantizedTensor:
        tensor = self.micro.tensor(f"quantized {kind}", shape, block=block, dtype="int8")
        return QuantizedTensor(tensor, q.record, q.format, q.name)

    def _quantize(self, kind: str, layer: str, x: Tensor, y: Tensor, integers: bool) -> Tensor | QuantizedTensor:
        q = self._quantizer(kind, layer)
        if self.precision.is_static(kind, self.mode, self.training):
            emit_next_range(self.prepare, q)
        else:
            emit_measured_range(self.micro, q, x)
        found = self._integers(kind, q, x.shape, x.block) if integers else y
        self._emit_quantize(q, x, found.tensor if integers else y)
        return found

    def _emit_quantize(self, q: Quantizer, x: Tensor, y: Tensor) -> None:
        self._emit_once(partial(emit_quantize, self.micro, q, x, y), self._findings(q, x))

    def _emit_once(self, emit: Callable[[RangeStatistics | None], None], found: RangeStatistics | None) -> None:
        """A launch that leaves what it finds; if it must run again, it doesn't."""
        emit(found)
        if found:
            with self.micro.replay():
                emit(None)

    def _findings(self, q: Quantizer, x: Tensor) -> RangeStatistics | None:
        return self.noted.of(q, parts(self.micro, x), rule_of(q.observer), not self.first)
