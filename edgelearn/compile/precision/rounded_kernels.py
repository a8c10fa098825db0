"""Kernels of linear layers, rounded once a mini-batch as the passes of a program read them."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.compile.storage import Storage
from edgelearn.launch import Buffer, Role
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.control import Control
from edgelearn.ops.formats import Format, NumberFormat, StoredType, has_range
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import OWN, Quantizer, emit_quantized_weights, weight_parts
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored
from edgelearn.ops.transpose import KernelView, emit_prepared

from .precision import Precision
from .range_collector import RangeCollector


class RoundedKernels:
    """Emits the jobs of `prepare` that round kernels, each once; a kernel in float32 is returned as it is.

    With `measure`, the jobs that take the extremes of kernels themselves go there: `extremes`, by the kernel's buffer,
    are those that updates leave then.
    """

    def __init__(
        self,
        precision: Precision,
        storage: Storage,
        prepare: Emitter,
        statistics: RangeCollector,
        measure: Emitter | None,
    ) -> None:
        self.precision, self.storage, self.prepare, self.statistics = precision, storage, prepare, statistics
        self.measure = measure
        self.extremes: dict[Buffer, Tensor] = {}
        self._made: dict[tuple[str, str], Tensor] = {}

    def floats(self, layer: str, view: KernelView) -> Stored:
        """For passes that compute in float32: integers as the floats they stand for. A format without a range stores
        its own, rounded after scaling."""
        fmt, kernel = self._format(layer), view.kernel
        if fmt is not None and not has_range(fmt) and self._dtype(fmt) != "float32":
            name = f"{layer}/prepared weights" if view.changes else f"{layer}/weights"
            return QuantizedTensor(self._encoded(fmt, name, layer, view), None, fmt, name)
        if has_range(fmt):
            kernel = self._quantized(fmt, layer, kernel, "float32")
        elif fmt is not None:
            kernel = self._encoded(fmt, f"{layer}/weights", layer, KernelView(kernel))
        return emit_prepared(self.prepare, replace(view, kernel=kernel))

    def integers(self, layer: str, view: KernelView) -> QuantizedTensor:
        """For passes that multiply integers: the kernel's or, where `view` scales them or sums over channels that have
        steps of their own, others with a range of their own."""
        fmt, name = self._integer_format(layer), f"{layer}/prepared weights"
        if view.scale is None and not (view.taps and fmt.per_channel):
            q, kernel = self._quantizer(fmt, layer, view.kernel), self._quantized(fmt, layer, view.kernel, "int8")
            integers = QuantizedTensor(kernel, q.channels or q.record, fmt, q.name)
            return quantized_copy.emit_transposed(self.prepare, integers, view.taps) if view.taps else integers
        record = self.storage.tensor(f"{name} range", (1, 16), Role.PREPARED)
        fields = (16, view.shape[-1])
        channels = self.storage.tensor(f"{name} ranges", fields, Role.PREPARED) if fmt.per_channel else None
        q = Quantizer(name, fmt, CurrentMinMax(), record, channels)
        y = self.storage.tensor(f"{name}, integers", view.shape, Role.PREPARED, layer=layer, dtype="int8")
        emit_quantized_weights(self.prepare, q, view, y, None, self._control)
        return QuantizedTensor(y, channels or record, fmt, name)

    def _format(self, layer: str) -> NumberFormat | None:
        return self.precision.format("weights", layer)

    def _integer_format(self, layer: str) -> Format:
        fmt = self._format(layer)
        assert has_range(fmt)
        return fmt

    def _dtype(self, fmt: NumberFormat) -> str:
        """The dtype of kernels in a format without a range."""
        return fmt.storage if not self.precision.simulated and StoredType.has(fmt.storage) else "float32"

    def _quantizer(self, fmt: Format, layer: str, kernel: Tensor) -> Quantizer:
        channels = kernel.channels if fmt.per_channel else 0
        return self.storage.quantizer(f"{layer}/weights", fmt, self.precision.observer_of("weights"), channels)

    def _quantized(self, fmt: Format, layer: str, kernel: Tensor, dtype: str) -> Tensor:
        key = layer, dtype
        if key not in self._made:
            q = self._quantizer(fmt, layer, kernel)
            name = f"{layer}/kernel quantized, {dtype}"
            y = self._made[key] = self.storage.tensor(name, kernel.shape, Role.PREPARED, layer=layer, dtype=dtype)
            known, parts = self.statistics.knows(q.name), weight_parts(kernel)
            statistics = None if known else self.statistics.of(q, parts, OWN)
            extremes = emit_quantized_weights(
                self.prepare, q, KernelView(kernel), y, statistics, self._control, self.measure
            )
            if self.measure:
                self.extremes[kernel.buffer] = extremes
        return self._made[key]

    def _encoded(self, fmt: NumberFormat, name: str, layer: str, view: KernelView) -> Tensor:
        key, dtype = (name, "encoded"), self._dtype(fmt)
        if key not in self._made:
            y = self.storage.tensor(f"{name}, encoded", view.shape, Role.PREPARED, layer=layer, dtype=dtype)
            self._made[key] = y
            statistics = self.statistics.of_rangeless(name, weight_parts(y))
            fmt.emit_encode_weights(self.prepare, view, y, statistics)
        return self._made[key]

    @property
    def _control(self) -> Control | None:
        return self.storage.control if self.statistics.training else None
