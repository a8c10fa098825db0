"""The representation of a program's tensors: floats, halves or integers, and what rounds and converts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    BFloat16,
    Compute,
    Emitter,
    Float16,
    Tensor,
)
from edgelearn.ops.constants import RangeRule
from edgelearn.ops.emit import Control
from edgelearn.ops.formats import (
    Format,
    KernelView,
    NumberFormat,
    QuantizedTensor,
    RangeStatistics,
    Stored,
    StoredType,
    emit_prepared,
    has_range,
    tensor_of,
)
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import (
    Quantizer,
    emit_check_finite,
    emit_decode,
    emit_learn_range,
    emit_measured_range,
    emit_next_range,
    emit_quantize,
    emit_quantized_weights,
    emit_to_integers,
    emit_transposed_integers,
    new_statistics,
    quantized_kernel,
    record_parts,
    rule_of,
    weight_parts,
)
from edgelearn.ops.target import Target, emit_copy, emit_padded
from edgelearn.ops.tensor import Shape

from .precision import Precision, RangeMode
from .storage import Storage

Emit = Callable[[Target], None]


class Representation:
    """How a program holds its tensors: floats, halves, integers, or floats of the values that one of these stands for.

    Emits what rounds each tensor, once it is complete, and what converts one where another type is read. A tensor in
    float32 is returned as it is.

    Arguments:
    - `precision`, `compute`: formats and observers; the type that linear layers multiply in.
    - `prepare`, `micro`: take what rounds kernels of linear layers, once a mini-batch, and other tensors.
    - `mode`: how ranges are obtained (see Precision.mode).
    - `training`: also collect the statistics of tensors, for the next ranges and to detect overflows.
    - `first`: statistics start anew.
    - `measure`: takes the jobs that measure kernels where updates do so from then on (default None: they don't);
      `extremes`, by the kernel's buffer, are those that updates leave then.
    """

    def __init__(
        self, precision: Precision, compute: Compute, storage: Storage, prepare: Emitter, micro: Emitter,
        mode: RangeMode, training: bool, first: bool, measure: Emitter | None = None,
    ) -> None:  # fmt: skip
        self.precision, self.compute, self.storage, self.prepare, self.micro = (
            precision, compute, storage, prepare, micro
        )  # fmt: skip
        self.mode, self.training, self.first, self.measure = mode, training, first, measure
        self.extremes: dict[Buffer, Tensor] = {}
        self._prepared: dict[str, Tensor] = {}
        self._checked: dict[str, Tensor] = {}  # statistics by name of the tensor
        self._observed: dict[str, tuple[Quantizer, Tensor, int]] = {}

    def format(self, kind: str, layer: str) -> NumberFormat | None:
        return self.precision.format(kind, layer)

    def quantizes(self, kind: str, layer: str) -> bool:
        """True if a tensor is rounded to integers, stored or simulated."""
        return has_range(self.format(kind, layer))

    def stores(self, kind: str, layer: str) -> bool:
        """True if a tensor may be stored as integers."""
        fmt = self.format(kind, layer)
        return not self.precision.simulated and fmt is not None and fmt.storage == "int8"

    def is_static(self, kind: str) -> bool:
        """True if the ranges of a kind of tensors are known before these are computed."""
        return self.precision.is_static(kind, self.mode, self.training)

    # -- tensors of the passes -----------------------------------------------------------------------------------

    def known_range(self, kind: str, layer: str) -> Quantizer:
        """The quantizer of a tensor whose range is known; the range comes into use."""
        q = self._quantizer(kind, layer)
        emit_next_range(self.prepare, q)
        return q

    def rounded(self, kind: str, layer: str, x: Tensor, integers: bool | None = None, is_input: bool = False) -> Stored:
        """The complete tensor `x` in its format: as `integers` (default: if these may be stored), or in place as the
        values that its format has. Halves are stored where `x` outlives the layers that read it: gradients don't.

        An input of the network (`is_input`) stays for the next pass, in halves, or as it was before integers.
        """
        fmt = self.format(kind, layer)
        if fmt is None:
            return x
        if has_range(fmt):
            q = self.known_range(kind, layer) if self.is_static(kind) else self._quantizer(kind, layer)
            if not self.is_static(kind):
                emit_measured_range(self.micro, q, x)
            integers = self.stores(kind, layer) if integers is None else integers
            y: Stored = self._integers(kind, q, x.shape, x.block) if integers else x
            if is_input and not integers:
                y = self.micro.tensor("quantized", x.shape, block=x.block)
            self._emit_quantize(q, x, tensor_of(y))
            return y
        stored = not self.precision.simulated and (kind == "activations" or StoredType.has(fmt.storage))
        in_place = not stored or is_input or kind == "gradients"
        out = x if in_place else self.micro.tensor(f"encoded {kind}", x.shape, dtype=fmt.storage)
        name = f"{layer}/{kind}"
        statistics = self._statistics(name, record_parts(self.micro, x), add=not self.first)
        self._emit_once(partial(fmt.emit_encode, self.micro, x, out), statistics)
        return out if out.dtype == "float32" else QuantizedTensor(out, None, fmt, name)

    def written(self, kind: str, layer: str, shape: Shape, emit: Emit, integers: bool = True) -> Stored:
        """The tensor that `emit` writes to its target, quantized: as `integers`, or as the floats that these stand for.
        With a static range `emit` quantizes it; else it writes floats, whose statistics give the range."""
        static = self.is_static(kind)
        q = self.known_range(kind, layer) if static else self._quantizer(kind, layer)
        if integers:
            y = self._integers(kind, q, shape)
        else:
            y = QuantizedTensor(self.micro.tensor(f"quantized {kind}", shape), q.record, q.format, q.name)
        if static:
            self._emit_once(
                lambda statistics: emit(Target(y, statistics=statistics)), self._statistics_of(q, y.tensor),
                again=kind != "gradients",  # which are never recomputed
            )  # fmt: skip
        else:
            values = self.micro.tensor(f"{kind} as floats", shape) if integers else y.tensor
            statistics = new_statistics(self.micro, q, values)
            emit(Target(values, statistics=statistics))
            emit_measured_range(self.micro, q, values, statistics)
            self._emit_quantize(q, values, y.tensor)
        return y if integers else y.tensor

    def result(
        self, kind: str, layer: str, shape: Shape, emit: Emit, name: str, direct: bool, integers: bool | None = None,
        dtype: str = "float32",
    ) -> Stored:  # fmt: skip
        """The tensor that `emit` writes to its target, in its format: quantized as it is written if `direct`, else
        rounded afterwards; it is then `name` before."""
        if direct and self.micro.fuses("rounding"):
            return self.written(kind, layer, shape, emit, self.stores(kind, layer) if integers is None else integers)
        y = self.micro.tensor(name, shape, dtype=dtype)
        emit(Target(y))
        return self.rounded(kind, layer, y, integers)

    def selected(self, inputs: Sequence[Stored], y: Tensor) -> Stored:
        """The output of a layer that only selects among its inputs' values: stored like them, if they are alike."""
        x = inputs[0]
        if not isinstance(x, QuantizedTensor):
            return y
        encoded = replace(x, tensor=self.micro.tensor("encoded activations", y.shape, dtype=x.tensor.dtype))
        if has_range(x.format) and len(inputs) == 1:
            # Stochastic rounding would draw numbers for values that need none.
            exact = replace(x.format, rounding="nearest")  # the values are what integers stand for
            emit_to_integers(self.micro, y, replace(encoded, format=exact))
            return encoded
        if has_range(x.format) or any(getattr(other, "format", None) != x.format for other in inputs):
            return y  # of different ranges or formats
        x.format.emit_encode(self.micro, y, encoded.tensor)
        return encoded

    @contextmanager
    def read_as(self, values: Sequence[Stored], dtype: str) -> Iterator[list[Tensor]]:
        """Yield `values` as tensors of `dtype`, floats or halves. Those in another format, which launches emitted in
        the block read, are converted before it."""
        e = self.micro
        start = len(e.launches)
        tensors = [
            v if isinstance(v, Tensor) and v.dtype == dtype else e.tensor(f"as {dtype}", v.shape, dtype=dtype)
            for v in values
        ]
        yield tensors
        emitted = e.launches[start:]
        del e.launches[start:]
        # A copy is made only if a launch reads it: a backward pass may need its output and not its input, or neither.
        read = {buffer for launch in emitted for buffer in launch.reads}
        for value, tensor in zip(values, tensors, strict=True):
            if value is not tensor and tensor.buffer in read:
                if isinstance(value, QuantizedTensor):
                    emit_decode(e, value, tensor)
                else:
                    emit_padded(e, value, tensor)
        e.launches += emitted

    @contextmanager
    def written_as(self, targets: Sequence[Target | None], dtype: str) -> Iterator[list[Target | None]]:
        """Yield `targets` of `dtype`. What is written to one that stands for a target of another type is copied there
        after the block."""
        e = self.micro
        own = [
            t if t is None or t.tensor.dtype == dtype else Target(e.tensor("gradient", t.tensor.shape, dtype=dtype))
            for t in targets
        ]
        yield own
        for target, written in zip(targets, own, strict=True):
            if target is not None and written is not None and written is not target:
                emit_copy(e, written.tensor, target)

    # -- kernels of linear layers --------------------------------------------------------------------------------

    def kernel(self, layer: str, view: KernelView, integers: bool) -> Stored:
        """The kernel as `view` describes it, rounded once a mini-batch: for passes that multiply `integers`, else in
        halves or floats, which may stand for integers. A format without a range rounds after scaling."""
        fmt, name = self.format("weights", layer), f"{layer}/weights"
        if self.compute.stores_halves:
            halves = BFloat16() if self.compute.stored == "bfloat16" else Float16()
            name = f"{layer}/kernel {'as the input gradient reads it' if view.changes else 'in halves'}"
            return self._encoded(halves, name, layer, view, self.compute.stored, collects=False)
        if integers:
            return self._integer_kernel(layer, view)
        if has_range(fmt):
            view = replace(view, kernel=self._quantized(layer, view.kernel, "float32"))
        elif fmt is not None:
            if not self.precision.simulated and StoredType.has(fmt.storage) and fmt.storage != "float32":
                name = f"{layer}/prepared weights" if view.changes else name
                return QuantizedTensor(self._encoded(fmt, name, layer, view, fmt.storage), None, fmt, name)
            view = replace(view, kernel=self._encoded(fmt, name, layer, KernelView(view.kernel), "float32"))
        return self.prepared(view)

    def prepared(self, view: KernelView) -> Tensor:
        """The floats that `view` describes: prepared once a mini-batch, or constants if they can be."""
        if view.taps and self._is_constant(view):
            name = f"{view.kernel.buffer.name} transposed"
            return self.storage.derived(name, view.shape, view.kernel.buffer, view.of)
        return emit_prepared(self.prepare, view)

    def _is_constant(self, view: KernelView) -> bool:
        """True if what a view describes never changes, and the device keeps such tensors outside its own memory."""
        return self.micro.traits.bare and view.kernel.buffer.role is Role.CONSTANT and view.scale is None

    def _integer_kernel(self, layer: str, view: KernelView) -> QuantizedTensor:
        """The integers of a kernel or, where `view` scales it or sums over channels that have steps of their own,
        others with a range of their own."""
        fmt, name = self.format("weights", layer), f"{layer}/prepared weights"
        assert has_range(fmt)
        if self._is_constant(view) and fmt.rounding == "nearest":
            return self._constant_integers(fmt, view)
        if view.scale is None and not (view.taps and fmt.per_channel):
            q, kernel = self._kernel_quantizer(layer, view.kernel), self._quantized(layer, view.kernel, "int8")
            integers = QuantizedTensor(kernel, q.channels or q.record, fmt, q.name)
            return emit_transposed_integers(self.prepare, integers, view.taps) if view.taps else integers
        record = self.storage.tensor(f"{name} range", (1, 16), Role.PREPARED)
        fields = (16, view.shape[-1])
        channels = self.storage.tensor(f"{name} ranges", fields, Role.PREPARED) if fmt.per_channel else None
        q = Quantizer(name, fmt, CurrentMinMax(), record, channels)
        y = self.storage.tensor(f"{name}, integers", view.shape, Role.PREPARED, layer=layer, dtype="int8")
        emit_quantized_weights(self.prepare, q, view, y, None, self._control)
        return QuantizedTensor(y, channels or record, fmt, name)

    def _constant_integers(self, fmt: Format, view: KernelView) -> QuantizedTensor:
        """The integers of a frozen kernel, and their range, as the host computes them."""
        source, channels = view.kernel.buffer, view.shape[-1] if fmt.per_channel else 0
        name = f"{source.name}{' transposed' if view.taps else ''}, {fmt}"
        fields = (16, channels) if channels else (1, 16)
        record = self.storage.derived(f"{name}, range", fields, source, lambda w: quantized_kernel(fmt, view.of(w))[1])
        integers = self.storage.derived(
            name, view.shape, source, lambda w: quantized_kernel(fmt, view.of(w))[0], dtype="int8"
        )
        return QuantizedTensor(integers, record, fmt, name)

    def _kernel_quantizer(self, layer: str, kernel: Tensor) -> Quantizer:
        fmt = self.format("weights", layer)
        return self._quantizer("weights", layer, kernel.channels if fmt is not None and fmt.per_channel else 0)

    def _quantized(self, layer: str, kernel: Tensor, dtype: str) -> Tensor:
        q = self._kernel_quantizer(layer, kernel)

        def emit(y: Tensor) -> None:
            known = q.name in self._observed or q.name in self._checked
            statistics = None if known else self._statistics(q.name, weight_parts(kernel), q, RangeRule.RULE_OWN)
            extremes = emit_quantized_weights(
                self.prepare, q, KernelView(kernel), y, statistics, self._control, self.measure
            )
            if self.measure:
                self.extremes[kernel.buffer] = extremes

        return self._once(f"{layer}/kernel quantized, {dtype}", layer, kernel.shape, dtype, emit)

    def _encoded(
        self, fmt: NumberFormat, name: str, layer: str, view: KernelView, dtype: str, collects: bool = True
    ) -> Tensor:
        def emit(y: Tensor) -> None:
            statistics = self._statistics(name, weight_parts(y)) if collects else None
            fmt.emit_encode_weights(self.prepare, view, y, statistics)

        return self._once(f"{name}, encoded" if collects else name, layer, view.shape, dtype, emit)

    def _once(self, name: str, layer: str, shape: Shape, dtype: str, emit: Callable[[Tensor], None]) -> Tensor:
        """The prepared tensor `name`, which `emit` writes when it is first asked for."""
        if name not in self._prepared:
            y = self._prepared[name] = self.storage.tensor(name, shape, Role.PREPARED, layer=layer, dtype=dtype)
            emit(y)
        return self._prepared[name]

    # -- statistics ----------------------------------------------------------------------------------------------

    def check(self, finish: Emitter) -> None:
        """Emit jobs that flag tensors with a NaN or an infinity."""
        for name, found in self._checked.items():
            finish.layer = name.rpartition("/")[0]
            emit_check_finite(finish, name, found)

    def learn(self, finish: Emitter) -> None:
        """Emit jobs that compute the next ranges, unless the mini-batch failed."""
        for q, found, rule in self._observed.values():
            finish.layer = q.name.rpartition("/")[0]
            emit_learn_range(finish, q, found, self.storage.control, rule)

    @property
    def _control(self) -> Control | None:
        return self.storage.control if self.training else None

    def _quantizer(self, kind: str, layer: str, channels: int = 0) -> Quantizer:
        fmt = self.format(kind, layer)
        assert has_range(fmt)
        return self.storage.quantizer(f"{layer}/{kind}", fmt, self.precision.observer_of(kind), channels)

    def _integers(self, kind: str, q: Quantizer, shape: Shape, block: int = 16) -> QuantizedTensor:
        tensor = self.micro.tensor(f"quantized {kind}", shape, block=block, dtype="int8")
        return QuantizedTensor(tensor, q.record, q.format, q.name)

    def _emit_quantize(self, q: Quantizer, x: Tensor, y: Tensor) -> None:
        self._emit_once(partial(emit_quantize, self.micro, q, x, y), self._statistics_of(q, x))

    def _emit_once(
        self, emit: Callable[[RangeStatistics | None], None], statistics: RangeStatistics | None, again: bool = True
    ) -> None:
        """Emit a launch that collects statistics the first time, but not when it is recomputed."""
        emit(statistics)
        if statistics and again:
            with self.micro.replay():
                emit(None)

    def _statistics_of(self, q: Quantizer, x: Tensor) -> RangeStatistics | None:
        return self._statistics(q.name, record_parts(self.micro, x), q, rule_of(q.observer), not self.first)

    def _statistics(
        self, name: str, count: int, q: Quantizer | None = None, rule: int = RangeRule.RULE_OWN, add: bool = False
    ) -> RangeStatistics | None:
        """`count` records of the tensor `name`: of a quantized one, from which `rule` computes the next range. A NaN or
        an infinity in it fails the step, unless integers are simulated, which keep a NaN: a later layer may hide it."""
        if not self.training:
            return None
        found = self.storage.tensor(f"{name} found", (count, 16), Role.FOUND)
        if q:
            self._observed[name] = q, found, rule
        if not q or not self.precision.simulated:
            self._checked[name] = found
        return RangeStatistics(found, q is not None and self.precision.traced, add)
