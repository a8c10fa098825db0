"""Where the tensors of a program become quantised: each kind as soon as it is whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgelearn.launch import Role
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.control import Control
from edgelearn.ops.estimators import CurrentMinMax
from edgelearn.ops.quantise import (
    OWN,
    Findings,
    Quantiser,
    emit_check_found,
    emit_learn_range,
    emit_measured_range,
    emit_next_range,
    emit_quantise,
    emit_quantised_weights,
    parts,
    rule_of,
    statistics,
    weight_parts,
)
from edgelearn.ops.ranged import Ranged
from edgelearn.ops.tensor import Shape

from .precision import Precision
from .storage import Storage


class Quantisers:
    """Emits, into a program's `prepare` and `micro`, what quantises its tensors as `precision` says; a tensor whose
    format is float32 comes back as it is. `mode` is how ranges are got (see Precision.mode); `training` also leaves
    what was found, which `learn` turns into the next ranges; `first` says that findings start anew."""

    def __init__(
        self,
        precision: Precision,
        storage: Storage,
        prepare: Emitter,
        micro: Emitter,
        mode: str,
        training: bool,
        first: bool,
    ) -> None:
        self.precision, self.storage, self.prepare, self.micro = precision, storage, prepare, micro
        self.mode, self.training, self.first = mode, training, first
        self._kernels: dict[tuple[str, str], Tensor] = {}
        self._found: dict[str, tuple[Quantiser, Tensor, int]] = {}

    def kernel(self, layer: str, kernel: Tensor) -> Tensor:
        """The kernel of a layer as its passes read it; the same whenever asked for."""
        if not self.quantises("weights", layer):
            return kernel
        return self._kernel(layer, kernel, "float32")

    def integer_kernel(self, layer: str, kernel: Tensor) -> Ranged:
        """The same as integers."""
        q = self._kernel_quantiser(layer, kernel)
        return Ranged(self._kernel(layer, kernel, "int8"), q.channels or q.record, q.format, q.name)

    def _kernel_quantiser(self, layer: str, kernel: Tensor) -> Quantiser:
        fmt = self.precision.format("weights", layer)
        channels = kernel.channels if fmt.per_channel else 0
        return self.storage.quantiser(f"{layer}/weights", fmt, self.precision.estimator_of("weights"), channels)

    def _kernel(self, layer: str, kernel: Tensor, dtype: str) -> Tensor:
        key = layer, dtype
        if key not in self._kernels:
            q = self._kernel_quantiser(layer, kernel)
            name = f"{layer}/kernel quantised, {dtype}"
            y = self.storage.tensor(name, kernel.shape, Role.PREPARED, layer=layer, dtype=dtype)
            found = None if q.name in self._found else self._findings(q, weight_parts(self.prepare, kernel), OWN)
            emit_quantised_weights(self.prepare, q, kernel, y, found, self._control)
            self._kernels[key] = y
        return self._kernels[key]

    def prepared_kernel(self, layer: str, prepared: Tensor) -> Ranged:
        """A kernel as the backward pass to data wants it, as integers with a range of its own."""
        fmt, name = self.precision.format("weights", layer), f"{layer}/prepared weights"
        record = self.storage.tensor(f"{name} range", (1, 16), Role.PREPARED)
        fields = (16, prepared.channels)
        channels = self.storage.tensor(f"{name} ranges", fields, Role.PREPARED) if fmt.per_channel else None
        q = Quantiser(name, fmt, CurrentMinMax(), record, channels)
        y = self.storage.tensor(f"{name}, integers", prepared.shape, Role.PREPARED, layer=layer, dtype="int8")
        emit_quantised_weights(self.prepare, q, prepared, y, None, self._control)
        return Ranged(y, channels or record, fmt, name)

    def activation(
        self, layer: str, x: Tensor, y: Tensor | None = None, integers: bool | None = None
    ) -> Tensor | Ranged:
        """What a layer has written, quantised where it lies, or into `y`; or as integers, where the precision says so
        and `integers` doesn't say otherwise."""
        as_integers = self.stores("activations", layer) if integers is None else integers
        return self._quantise("activations", layer, x, y or x, as_integers)

    def gradient(self, layer: str, dy: Tensor, integers: bool = False) -> Tensor | Ranged:
        """The gradient of a linear layer's output, once every reader of that has added its share."""
        return self._quantise("gradients", layer, dy, dy, integers)

    def stores(self, kind: str, layer: str) -> bool:
        """Whether a tensor may be kept as integers."""
        fmt = self.precision.format(kind, layer)
        return not self.precision.simulated and fmt is not None and fmt.storage == "int8"

    def write(
        self, kind: str, layer: str, shape: Shape, emit: Callable[[Tensor | Ranged, Findings | None], None]
    ) -> Ranged:
        """What `emit` writes, as integers: it writes these itself where their range is known by then, else floats,
        whose range is what is found of them."""
        q = self._quantiser(kind, layer)
        y = self._integers(kind, q, shape)
        if self.precision.is_static(kind, self.mode, self.training):
            emit_next_range(self.prepare, q)
            found = self._findings(q, parts(self.micro, y.tensor), rule_of(q.estimator), not self.first)
            self._emit_once(partial(emit, y), found)
            return y
        values = self.micro.tensor(f"{kind} as floats", shape)
        found = statistics(self.micro, q, values)
        emit(values, found)
        emit_measured_range(self.micro, q, values, found)
        self._emit_quantise(q, values, y.tensor)
        return y

    def quantises(self, kind: str, layer: str) -> bool:
        return self.precision.format(kind, layer) is not None

    def _quantiser(self, kind: str, layer: str) -> Quantiser:
        fmt = self.precision.format(kind, layer)
        return self.storage.quantiser(f"{layer}/{kind}", fmt, self.precision.estimator_of(kind))

    def _integers(self, kind: str, q: Quantiser, shape: Shape, block: int = 16) -> Ranged:
        tensor = self.micro.tensor(f"quantised {kind}", shape, block=block, dtype="int8")
        return Ranged(tensor, q.record, q.format, q.name)

    def _quantise(self, kind: str, layer: str, x: Tensor, y: Tensor, integers: bool) -> Tensor | Ranged:
        if not self.quantises(kind, layer):
            return x
        q = self._quantiser(kind, layer)
        if self.precision.is_static(kind, self.mode, self.training):
            emit_next_range(self.prepare, q)
        else:
            emit_measured_range(self.micro, q, x)
        found = self._integers(kind, q, x.shape, x.block) if integers else y
        self._emit_quantise(q, x, found.tensor if integers else y)
        return found

    def _emit_quantise(self, q: Quantiser, x: Tensor, y: Tensor) -> None:
        found = self._findings(q, parts(self.micro, x), rule_of(q.estimator), not self.first)
        self._emit_once(partial(emit_quantise, self.micro, q, x, y), found)

    def _emit_once(self, emit: Callable[[Findings | None], None], found: Findings | None) -> None:
        """A launch that leaves what it finds; if it must run again, it doesn't."""
        emit(found)
        if found:
            with self.micro.again():
                emit(None)

    def _findings(self, q: Quantiser, count: int, rule: int, add: bool = False) -> Findings | None:
        if not self.training:
            return None
        found = self.storage.tensor(f"{q.name} found", (count, 16), Role.FOUND)
        self._found[q.name] = q, found, rule
        return Findings(found, self.precision.traced, add)

    @property
    def _control(self) -> Control | None:
        return self.storage.control if self.training else None

    def check(self, finish: Emitter) -> None:
        """Jobs: flags for tensors that held a NaN or an infinity, which integers don't pass on."""
        if not self.precision.simulated:
            for q, found, _ in self._found.values():
                finish.layer = q.name.rpartition("/")[0]
                emit_check_found(finish, q, found)

    def learn(self, finish: Emitter) -> None:
        """Jobs: the next ranges from what the mini-batch has held, unless it failed."""
        for q, found, rule in self._found.values():
            finish.layer = q.name.rpartition("/")[0]
            emit_learn_range(finish, q, found, self.storage.control, rule)
