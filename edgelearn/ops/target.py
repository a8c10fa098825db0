"""The sink of a kernel: mask, accumulate, quantize and write its result; and copies into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgelearn.errors import PlanError
from edgelearn.launch import Access, In

from .emit import Emitter, layer_code
from .formats import QuantizedTensor, RangeStatistics, Stored, StoredType, reads, stored_macros, tensor_of
from .tensor import BLOCK, LINEAR, Function, Tensor


@dataclass(frozen=True)
class Target:
    """The sink of a kernel.

    Kernels of floats write through kernels/include/gradient.h (`arguments`, `macros`); those that may quantize, through
    kernels/include/result.h (`result_arguments`, `result_macros`, and for gradients `mask_arguments`, `mask_macros`).

    Arguments:
    - `y`: floats; or a QuantizedTensor, which is quantized by the range in its record (stochastic rounding only in
      training).
    - `mask`: the kernel's input if it is the output of a fused activation, by whose derivative the gradient is
      multiplied.
    - `activation`: that activation.
    - `accumulate`: add to the share of the gradient that another reader of the tensor has written.
    - `masks_sum`: the derivative multiplies the sum with the other readers' shares (default: this share alone).
    - `statistics`: where statistics of what is written go.
    """

    y: Stored
    mask: Stored | None = None
    activation: Function = LINEAR
    accumulate: bool = False
    statistics: RangeStatistics | None = None
    masks_sum: bool = False

    @property
    def tensor(self) -> Tensor:
        return tensor_of(self.y)

    @property
    def is_plain(self) -> bool:
        """True for floats without statistics."""
        return isinstance(self.y, Tensor) and self.statistics is None

    @property
    def macros(self) -> dict[str, Any]:
        return self.mask_macros | {"accumulate": self.accumulate} | self.tensor.value_macros

    @property
    def arguments(self) -> list[Access]:
        write = self.tensor.update if self.accumulate else self.tensor.write
        if isinstance(self.mask, QuantizedTensor):
            return [write, *self.mask.read]
        return [write] if self.mask is None else [write, self.mask.read_output_of(self.activation)]

    @property
    def mask_macros(self) -> dict[str, Any]:
        """MASK, MASKED_BY and ACTIVATION in kernels/include/result.h."""
        mask = "MASK_SUM" if self.masks_sum else self.mask is not None
        macros: dict[str, Any] = {"mask": mask, **self.activation.macros()}
        return macros | ({"masked_by": StoredType.INT8} if isinstance(self.mask, QuantizedTensor) else {})

    @property
    def mask_arguments(self) -> tuple[In, ...]:
        return () if self.mask is None else reads(self.mask)

    def result_macros(self, e: Emitter) -> dict[str, int]:
        return {
            "quantized": isinstance(self.y, QuantizedTensor),
            "written": StoredType.of(self.tensor.dtype),
            "stochastic": self._draws(e),
            "statistics": self.statistics is not None,
            "traced": self.statistics is not None and self.statistics.traced,
            "accumulate": self.accumulate,
        }

    def result_arguments(self, e: Emitter) -> list[Access | int | float]:
        """RESULT_ARGUMENTS in kernels/include/result.h. Raises PlanError for shares of a gradient in integers."""
        t = self.tensor
        arguments: list[Access | int | float] = [t.update if self.accumulate else t.write]
        if isinstance(self.y, QuantizedTensor):
            if self.accumulate:
                raise PlanError(f"'{t.buffer.name}' is a sum of shares: add them up as floats, and quantize the sum.")
            arguments += [*self.y.record_read, *self.y.bounds]
            if e.training and self._draws(e):
                arguments += [e.training.scalars.read, e.training.counters.read]
                arguments += [t.rows // t.images, t.blocks, layer_code(self.y.name)]
        if self.statistics:
            parts, add = self.statistics.parts, self.statistics.add
            arguments += [parts.update if add else parts.write, t.rows * t.channels, int(add)]
        return arguments

    def items(self, e: Emitter, tiles: int, group: int = 0) -> int:
        """Work-items of a kernel of result.h: a work-group, of size `group` (default: the device's), for each record of
        statistics, or an item a tile."""
        return self.statistics.parts.rows * (group or e.traits.group) if self.statistics else tiles

    def _draws(self, e: Emitter) -> bool:
        return isinstance(self.y, QuantizedTensor) and self.y.is_stochastic and e.training is not None


def emit_copy(e: Emitter, x: Tensor, target: Target) -> None:
    """Emit target = x, in the target's type, masked or accumulated by the target."""
    groups, count = e.bands(x.rows, x.blocks, 64, several=True)
    e.launch(
        "elementwise.cl", "copy", (groups, x.blocks), x.read, x.rows, count, *target.arguments,
        **stored_macros(x), **target.macros,
    )  # fmt: skip


def emit_padded(e: Emitter, x: Tensor, y: Tensor) -> None:
    """Emit y = x, in y's type and in blocks of 16 channels: a network's input may have fewer."""
    if x.block == BLOCK:
        emit_copy(e, x, Target(y))
        return
    groups, count = e.bands(x.rows, y.blocks, 64, several=True)
    e.launch(
        "elementwise.cl", "pad_channels", (groups, y.blocks), x.read, x.rows, count, x.channels, y.write,
        **y.value_macros,
    )  # fmt: skip
