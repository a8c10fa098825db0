"""Number formats and ranges of a plan's tensors: the settings, their traffic by formula, and what emits the rounding.

The formula is that of Fournarakis and Nagel 2021, "In-hindsight quantization range estimation for quantized training"
(arXiv 2105.04246). A forward pass of one example reads weights and input and writes the output, each once, at their
bit-widths. If the range depends on the output (dynamic), the accumulators are also written and read before they are
quantized. The formula ignores cache misses, biases, ranges and other vectors, and layers that aren't convolutions.

>>> layer_traffic(resnet18(), "conv2_block1_1_conv").saved_share  # 428.0 KiB instead of 1,996.0 KiB
0.785...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property, partial
from math import prod

from edgelearn import records
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph.network import Network
from edgelearn.launch import Buffer, Role
from edgelearn.ops import (
    Conv2D,
    DepthwiseConv2D,
    Emitter,
    Float16,
    LinearOp,
    Tensor,
    quantize,
)
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
    format_from,
    has_range,
)
from edgelearn.ops.observers import CurrentMinMax, InHindsightMinMax, Observer
from edgelearn.ops.quantize import (
    OWN,
    Quantizer,
    emit_check_finite,
    emit_learn_range,
    emit_measured_range,
    emit_next_range,
    emit_quantize,
    emit_quantized_weights,
    emit_to_integers,
    new_statistics,
    record_parts,
    rule_of,
    weight_parts,
)
from edgelearn.ops.target import Target
from edgelearn.ops.tensor import Shape

from .storage import Storage

KINDS = ("weights", "activations", "norm_inputs", "gradients")


class RangeMode(Enum):
    """Origin of the ranges of quantized tensors in a program: see `Precision.mode`."""

    OBSERVED = "observed"
    SEARCHED = "searched"
    MEASURED = "measured"


@dataclass(frozen=True)
class Precision:
    """Number formats and range observers of a plan.

    Everything that isn't named here stays float32: master weights, biases, BatchNorm, sums, and the network's output.
    Gradients ignore the rounding of activations (straight-through, Bengio et al. 2013).

    Arguments:
    - `weights`, `activations`, `gradients`: format of the kernels of linear layers, of the layers' outputs, and of the
      gradients of linear layers' outputs: Format (integers), Float16 (halves), a NumberFormat of your own, or None for
      float32 (default).
    - `norm_inputs`: format of the outputs of linear layers that a BatchNorm normalizes by batch statistics. They are
      stored for the backward pass, so in float32 they take more than half of the memory of activations. Channels share
      a range there before BatchNorm equalizes them: behind depthwise layers, 8 bits can be too few.
    - `observer`: of the ranges of activations and `norm_inputs` (default InHindsightMinMax). Weights always use their
      own range.
    - `gradient_observer`: of the ranges of gradients (default `observer`).
    - `exceptions`: bits of the integers of some layers, by name or pattern, or None for float32: {"conv1": 8, "dense":
      None}. The network's input is the activation of layer "input".
    - `traced`: also record signal to noise and cosine of each tensor of integers.
    - `simulated`: True (default) keeps float32 tensors that hold the rounded values. False stores tensors in their
      format, but gradients in halves, which are rounded in place and short-lived. Int8 kernels then multiply integers
      in every layer whose weights, input and gradient have 8 bits or fewer. Halves are decoded where they are read:
      they save memory, not time.

    An overflow of half precision fails the step, which then changes nothing; gradients up to 2^-25 become 0, and there
    is no loss scaling. Raises PlanError for settings that contradict each other.
    """

    weights: NumberFormat | None = None
    activations: NumberFormat | None = None
    gradients: NumberFormat | None = None
    observer: Observer = InHindsightMinMax()  # noqa: RUF009
    gradient_observer: Observer | None = None
    exceptions: Mapping[str, int | None] = field(default_factory=dict)
    traced: bool = False
    simulated: bool = True
    norm_inputs: NumberFormat | None = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            fmt = getattr(self, kind)
            if not isinstance(fmt, NumberFormat | None):
                raise PlanError(f"The format of {kind} is such as Format(bits=8), Float16() or None, not {fmt!r}.")
            if fmt is not None and fmt.per_channel and kind != "weights":
                raise PlanError(f"A range for each channel is for weights alone: leave per_channel off for {kind}.")
        for observer in (self.observer, self.gradient_observer or self.observer):
            if not isinstance(observer, Observer):
                raise PlanError(f"Ranges come from an observer such as CurrentMinMax(), not from {observer!r}.")
        for bits in self.exceptions.values():
            if bits is not None:
                Format(bits)
        if not self.simulated and self.quantizes:
            self._check_integers()

    def _check_integers(self) -> None:
        for kind in KINDS:
            fmt = getattr(self, kind)
            if fmt is None and kind == "norm_inputs":
                continue
            if fmt is None or fmt.storage != "int8":
                raise PlanError(
                    f"Integer kernels need weights, activations and gradients of 8 bits or fewer, but {kind} are "
                    f"{fmt or 'float32'}: give them such a format, or simulate."
                )
        if has_range(self.weights) and not self.weights.symmetric:
            raise PlanError("Integer kernels need symmetric weights: Format(symmetric=True).")

    def format(self, kind: str, layer: str) -> NumberFormat | None:
        """The format of `layer`'s tensor of `kind` (one of KINDS); None for float32."""
        fmt = getattr(self, kind)
        for pattern, bits in self.exceptions.items():
            if fmt is not None and fnmatchcase(layer, pattern):
                return None if bits is None else fmt.with_bits(bits)
        return fmt

    def check(self, network: Network) -> None:
        """Raises PlanError for exceptions that match no layer of `network`."""
        for pattern in self.exceptions:
            if not any(fnmatchcase(name, pattern) for name in (*network.inputs, *network.nodes)):
                raise PlanError(
                    f"The precision has an exception for '{pattern}', but '{network.name}' has no such layer. There "
                    f"are: {', '.join(network.nodes)}."
                )

    def observer_of(self, kind: str) -> Observer:
        if kind == "weights":
            return CurrentMinMax()
        return self.gradient_observer or self.observer if kind == "gradients" else self.observer

    @property
    def quantizes(self) -> bool:
        """True if any tensor is rounded to integers."""
        return any(has_range(getattr(self, kind)) for kind in KINDS)

    @property
    def stores_integers(self) -> bool:
        """True if tensors are stored as integers, which kernels then multiply."""
        return self.quantizes and not self.simulated

    @cached_property
    def _observers(self) -> list[Observer]:
        return [self.observer_of(kind) for kind in KINDS[1:] if has_range(getattr(self, kind))]

    def mode(self, training: bool, known: bool, step: int = 0) -> RangeMode:
        """The mode of a program: OBSERVED, ranges of the observers; SEARCHED, in steps in which an observer searches;
        MEASURED, all ranges from their tensors, before any range is `known`."""
        if not known and any(e.start is None and (e.static if training else e.remembers) for e in self._observers):
            return RangeMode.MEASURED
        return RangeMode.SEARCHED if training and any(e.is_due(step) for e in self._observers) else RangeMode.OBSERVED

    def modes(self, training: bool) -> list[RangeMode]:
        """All modes that programs may have."""
        modes = [RangeMode.OBSERVED, self.mode(training, known=False)]
        if training and any(e.is_due(1) for e in self._observers):
            modes.append(RangeMode.SEARCHED)
        return list(dict.fromkeys(modes))

    def is_static(self, kind: str, mode: RangeMode, training: bool) -> bool:
        """True if a program uses the stored ranges of `kind`; else it measures the tensors."""
        observer = self.observer_of(kind)
        if mode == RangeMode.MEASURED:
            return observer.start is not None
        if not training:
            return observer.remembers
        return observer.static and not (mode == RangeMode.SEARCHED and observer.is_due(1))

    # -- as data -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict:
        """JSON-able; the inverse of `from_dict`."""
        formats = {kind: fmt.to_dict() if (fmt := getattr(self, kind)) else None for kind in KINDS}
        own = self.gradient_observer.to_dict() if self.gradient_observer else None
        more = {"exceptions": dict(self.exceptions), "traced": self.traced, "simulated": self.simulated}
        return formats | {"observer": self.observer.to_dict(), "gradient_observer": own} | more

    @classmethod
    def from_dict(cls, data: dict) -> Precision:
        """Raises FormatError for other data than that of `to_dict`."""
        try:
            settings = {**data}
            for kind in KINDS:
                if settings.get(kind) is not None:
                    settings[kind] = format_from(settings[kind])
            for name in ("observer", "gradient_observer"):
                if settings.get(name) is not None:
                    settings[name] = Observer.from_dict(settings[name])
            return cls(**settings)
        except (TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"This is not a precision: {error}. Write it with Precision.to_json.") from None

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Precision:
        """Raises FormatError for other data than that of `to_dict`."""
        try:
            return cls.from_dict(records.parse(text, dict))
        except records.RecordError as error:
            raise FormatError(f"This is not a precision: {error}. Write it with Precision.to_json.") from None

    def __str__(self) -> str:
        """A table: format and ranges of each kind, and the exceptions."""
        lines = [] if self.simulated else ["stored as they are; int8 tensors are multiplied as integers"]
        for kind in KINDS:
            fmt = getattr(self, kind)
            ranges = f"; {self.observer_of(kind)}" if has_range(fmt) else ""
            lines.append(f"{kind:<12} {fmt or 'float32'}{ranges}")
        others = [f"{name} {'float32' if bits is None else f'{bits} bits'}" for name, bits in self.exceptions.items()]
        return "\n".join(lines + ([f"{'exceptions':<12} {', '.join(others)}"] if others else []))


PRECISIONS = {
    "fp32": Precision(),
    "fp16": Precision(activations=Float16(), norm_inputs=Float16(), simulated=False),
    "int8": Precision(
        Format(8, symmetric=True), Format(8), Format(8, rounding="stochastic"), simulated=False, norm_inputs=Format(8)
    ),
}  # fmt: skip


def named_precision(precision: str | Precision) -> Precision:
    """The precision of this name: "fp32", "fp16" (activations stored in half precision) or "int8" (integers of 8 bits,
    stored and multiplied). A Precision is returned as it is. Raises PlanError for another name."""
    if isinstance(precision, Precision):
        return precision
    if precision not in PRECISIONS:
        raise PlanError(f"precision is {', '.join(PRECISIONS)} or a Precision, not {precision!r:.60}.")
    return PRECISIONS[precision]


@dataclass(frozen=True)
class LayerTraffic:
    """Bits of the three tensors of a layer, and of the output as accumulators."""

    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    accumulators: int = 0

    @property
    def static_bytes(self) -> float:
        """Bytes moved if the output's range is static."""
        return (self.weights + self.inputs + self.outputs) / 8

    @property
    def dynamic_bytes(self) -> float:
        """Bytes moved if the output's range is dynamic."""
        return self.static_bytes + 2 * self.accumulators / 8

    @property
    def saved_share(self) -> float:
        """The share of the dynamic range's bytes that a static one saves."""
        return 1 - self.static_bytes / self.dynamic_bytes

    def __add__(self, other: LayerTraffic) -> LayerTraffic:
        return LayerTraffic(
            self.weights + other.weights,
            self.inputs + other.inputs,
            self.outputs + other.outputs,
            self.accumulators + other.accumulators,
        )


def layer_traffic(
    network: Network, layer: str, weights: int = 8, activations: int = 8, accumulators: int = 32, outputs: int = 0
) -> LayerTraffic:
    """Traffic of one convolution or dense layer.

    Arguments:
    - `weights`, `activations`, `accumulators`, `outputs`: bits a value; `outputs` is `activations` by default.

    Raises PlanError for a layer without a kernel.
    """
    node = network.nodes.get(layer)
    if node is None or not isinstance(node.op, LinearOp):
        linear = ", ".join(n.name for n in network.nodes.values() if isinstance(n.op, LinearOp))
        raise PlanError(f"'{layer}' is no convolution or dense layer of '{network.name}', which has: {linear}.")
    size = prod(node.shape)
    return LayerTraffic(
        weights * network.count([f"{layer}/kernel"]),
        activations * prod(network.shape_of(node.inputs[0])),
        (outputs or activations) * size,
        accumulators * size,
    )


def convolutions(network: Network) -> list[str]:
    """Names of the convolutions, depthwise ones and projections of shortcuts among them."""
    return [node.name for node in network.nodes.values() if isinstance(node.op, Conv2D | DepthwiseConv2D)]


def network_traffic(network: Network, weights: int = 8, activations: int = 8, accumulators: int = 32) -> LayerTraffic:
    """The sum over the network's convolutions."""
    costs = (layer_traffic(network, name, weights, activations, accumulators) for name in convolutions(network))
    return sum(costs, LayerTraffic())


class RangeCollector:
    """Statistics of a program's tensors, by name; only in `training`."""

    def __init__(self, precision: Precision, storage: Storage, training: bool) -> None:
        self.precision, self.storage, self.training = precision, storage, training
        self._checked: dict[str, Tensor] = {}
        self._observed: dict[str, tuple[Quantizer, Tensor, int]] = {}

    def of(self, q: Quantizer, count: int, rule: int, add: bool = False) -> RangeStatistics | None:
        """`count` records of a tensor of integers, from which `rule` computes the next range. Stored integers are
        checked for NaN and infinity; simulated ones needn't be, since they keep a NaN.
        """
        if not self.training:
            return None
        parts = self._parts(q.name, count)
        self._observed[q.name] = q, parts, rule
        if not self.precision.simulated:
            self._checked[q.name] = parts
        return RangeStatistics(parts, self.precision.traced, add)

    def of_rangeless(self, name: str, count: int, add: bool = False) -> RangeStatistics | None:
        """`count` records of a tensor in a format without a range. It is always checked: a later layer may hide an
        infinity."""
        if not self.training:
            return None
        parts = self._checked[name] = self._parts(name, count)
        return RangeStatistics(parts, add=add)

    def knows(self, name: str) -> bool:
        return name in self._observed or name in self._checked

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

    def _parts(self, name: str, count: int) -> Tensor:
        return self.storage.tensor(f"{name} found", (count, 16), Role.FOUND)


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
            return quantize.emit_transposed_integers(self.prepare, integers, view.taps) if view.taps else integers
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
        statistics = self.statistics.of_rangeless(name, record_parts(self.micro, x), not self.first)
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
        return self.statistics.of(q, record_parts(self.micro, x), rule_of(q.observer), not self.first)
