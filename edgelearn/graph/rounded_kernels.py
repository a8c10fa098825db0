"""Kernels of linear layers as the passes of a program read them: rounded once a mini-batch, in `prepare`."""

from __future__ import annotations

from edgelearn.launch import Role
from edgelearn.ops import Emitter, Tensor, quantized_copy
from edgelearn.ops.control import Control
from edgelearn.ops.estimators import CurrentMinMax
from edgelearn.ops.formats import Float16
from edgelearn.ops.half import emit_halved_weights
from edgelearn.ops.quantize import OWN, Quantizer, emit_quantized_weights, weight_parts
from edgelearn.ops.ranged import Ranged
from edgelearn.ops.transpose import KernelView

from .noted import Noted
from .precision import Precision
from .storage import Storage


class RoundedKernels:
    """What is asked for is made when first asked for, by jobs of `prepare`; a kernel in float32 comes back as it is."""

    def __init__(self, precision: Precision, storage: Storage, prepare: Emitter, noted: Noted) -> None:
        self.precision, self.storage, self.prepare, self.noted = precision, storage, prepare, noted
        self._made: dict[tuple[str, str], Tensor] = {}

    def floats(self, layer: str, kernel: Tensor) -> Tensor:
        """For passes that compute in float32: values of the layer's format, halves stored as such."""
        fmt = self.precision.format("weights", layer)
        if fmt is None:
            return kernel
        if isinstance(fmt, Float16):
            return self._halves(f"{layer}/weights", layer, KernelView(kernel))
        return self._quantized(layer, kernel, "float32")

    def integers(self, layer: str, kernel: Tensor) -> Ranged:
        """For passes that multiply integers."""
        q = self._quantizer(layer, kernel)
        return Ranged(self._quantized(layer, kernel, "int8"), q.channels or q.record, q.format, q.name)

    def stores_halves(self, layer: str) -> bool:
        return not self.precision.simulated and isinstance(self.precision.format("weights", layer), Float16)

    def viewed_halves(self, layer: str, view: KernelView) -> Tensor:
        """For the backward pass to data, stored as halves: rounded with the scales in them."""
        return self._halves(f"{layer}/prepared weights" if view.changes else f"{layer}/weights", layer, view)

    def viewed_integers(self, layer: str, view: KernelView) -> Ranged:
        """For the backward pass to data: the same integers or, where `view` scales them or sums over channels that have
        steps of their own, others with a range of their own."""
        fmt, name = self.precision.format("weights", layer), f"{layer}/prepared weights"
        if view.scale is None and not (view.taps and fmt.per_channel):
            integers = self.integers(layer, view.kernel)
            return quantized_copy.emit_transposed(self.prepare, integers, view.taps) if view.taps else integers
        record = self.storage.tensor(f"{name} range", (1, 16), Role.PREPARED)
        fields = (16, view.shape[-1])
        channels = self.storage.tensor(f"{name} ranges", fields, Role.PREPARED) if fmt.per_channel else None
        q = Quantizer(name, fmt, CurrentMinMax(), record, channels)
        y = self.storage.tensor(f"{name}, integers", view.shape, Role.PREPARED, layer=layer, dtype="int8")
        emit_quantized_weights(self.prepare, q, view, y, None, self._control)
        return Ranged(y, channels or record, fmt, name)

    def _quantizer(self, layer: str, kernel: Tensor) -> Quantizer:
        fmt = self.precision.format("weights", layer)
        channels = kernel.channels if fmt.per_channel else 0
        return self.storage.quantizer(f"{layer}/weights", fmt, self.precision.estimator_of("weights"), channels)

    def _quantized(self, layer: str, kernel: Tensor, dtype: str) -> Tensor:
        key = layer, dtype
        if key not in self._made:
            q = self._quantizer(layer, kernel)
            name = f"{layer}/kernel quantized, {dtype}"
            y = self._made[key] = self.storage.tensor(name, kernel.shape, Role.PREPARED, layer=layer, dtype=dtype)
            found = None if self.noted.knows(q.name) else self.noted.of(q, weight_parts(self.prepare, kernel), OWN)
            emit_quantized_weights(self.prepare, q, KernelView(kernel), y, found, self._control)
        return self._made[key]

    def _halves(self, name: str, layer: str, view: KernelView) -> Tensor:
        key = name, "halves"
        if key not in self._made:
            dtype = "float32" if self.precision.simulated else "float16"
            y = self.storage.tensor(f"{name}, halves", view.shape, Role.PREPARED, layer=layer, dtype=dtype)
            self._made[key] = y
            emit_halved_weights(self.prepare, view, y, self.noted.of_halves(name, weight_parts(self.prepare, y)))
        return self._made[key]

    @property
    def _control(self) -> Control | None:
        return self.storage.control if self.noted.training else None
