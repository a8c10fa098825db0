"""Where the tensors of a program become quantised: each kind as soon as it is whole."""

from __future__ import annotations

from edgelearn.launch import Role
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.control import Control
from edgelearn.ops.quantise import (
    OWN,
    Findings,
    Quantiser,
    emit_learn_range,
    emit_measured_range,
    emit_next_range,
    emit_quantise,
    emit_quantised_weights,
    parts,
    rule_of,
    weight_parts,
)

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
        self._kernels: dict[str, Tensor] = {}
        self._found: list[tuple[Quantiser, Tensor, int]] = []

    def kernel(self, layer: str, kernel: Tensor) -> Tensor:
        """The kernel of a layer as its passes read it; the same whenever asked for."""
        if layer not in self._kernels:
            self._kernels[layer] = self._quantised_kernel(layer, kernel)
        return self._kernels[layer]

    def _quantised_kernel(self, layer: str, kernel: Tensor) -> Tensor:
        fmt = self.precision.format("weights", layer)
        if fmt is None:
            return kernel
        channels = kernel.channels if fmt.per_channel else 0
        q = self.storage.quantiser(f"{layer}/weights", fmt, self.precision.estimator_of("weights"), channels)
        quantised = self.storage.tensor(f"{layer}/kernel quantised", kernel.shape, Role.PREPARED, layer=layer)
        found = self._findings(q, weight_parts(self.prepare, kernel), OWN)
        emit_quantised_weights(self.prepare, q, kernel, quantised, found, self._control)
        return quantised

    def activation(self, layer: str, x: Tensor, y: Tensor | None = None) -> Tensor:
        """What a layer has written, quantised where it lies, or into `y`."""
        return self._quantise("activations", layer, x, y or x, passed=0)

    def gradient(self, layer: str, dy: Tensor) -> Tensor:
        """The gradient of a linear layer's output, once every reader of that has added its share."""
        return self._quantise("gradients", layer, dy, dy, passed=dy.images)

    def quantises(self, kind: str, layer: str) -> bool:
        return self.precision.format(kind, layer) is not None

    def _quantise(self, kind: str, layer: str, x: Tensor, y: Tensor, passed: int) -> Tensor:
        fmt = self.precision.format(kind, layer)
        if fmt is None:
            return x
        q = self.storage.quantiser(f"{layer}/{kind}", fmt, self.precision.estimator_of(kind))
        if self.precision.is_static(kind, self.mode, self.training):
            emit_next_range(self.prepare, q)
        else:
            emit_measured_range(self.micro, q, x)
        found = self._findings(q, parts(self.micro, x), rule_of(q.estimator), not self.first)
        emit_quantise(self.micro, q, x, y, found, passed if self.training else None)
        return y

    def _findings(self, q: Quantiser, count: int, rule: int, add: bool = False) -> Findings | None:
        if not self.training:
            return None
        found = self.storage.tensor(f"{q.name} found", (count, 16), Role.FOUND)
        self._found.append((q, found, rule))
        return Findings(found, self.precision.traced, add)

    @property
    def _control(self) -> Control | None:
        return self.storage.control if self.training else None

    def learn(self, finish: Emitter) -> None:
        """Jobs: the next ranges from what the mini-batch has held, unless it failed."""
        for q, found, rule in self._found:
            finish.layer = q.name.rpartition("/")[0]
            emit_learn_range(finish, q, found, self.storage.control, rule)
