"""Number formats and ranges of a plan's tensors: the settings, and their traffic by formula.

The formula is that of Fournarakis and Nagel 2021, "In-hindsight quantization range estimation for quantized training"
(arXiv 2105.04246). A forward pass of one example reads weights and input and writes the output, each once, at their
bit-widths. If the range depends on the output (dynamic), the accumulators are also written and read before they are
quantized. The formula ignores cache misses, biases, ranges and other vectors, and layers that aren't convolutions.

>>> layer_traffic(resnet18(), "conv2_block1_1_conv").saved_share  # 428.0 KiB instead of 1,996.0 KiB
0.785...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod

from edgelearn import records
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph.network import Network
from edgelearn.ops import (
    Conv2D,
    DepthwiseConv2D,
    Float16,
    LinearOp,
)
from edgelearn.ops.formats import (
    Format,
    NumberFormat,
    format_from,
    has_range,
)
from edgelearn.ops.observers import CurrentMinMax, InHindsightMinMax, Observer

KINDS = ("weights", "activations", "norm_inputs", "gradients")


class RangeMode(Enum):
    """Origin of the ranges of quantized tensors in a program: see `Precision.mode`."""

    OBSERVED = "observed"
    SEARCHED = "searched"
    MEASURED = "measured"


@dataclass(frozen=True)
class Precision:
    """Number formats and range observers of a plan. The metric of that name is `el.metrics.Precision`.

    Everything that isn't named here stays float32: master weights, biases, BatchNorm, sums, and the network's output.
    Gradients ignore the rounding of activations (straight-through, Bengio et al. 2013).

    Arguments:
    - `weights`, `activations`, `gradients`: format of the kernels of linear layers, of the layers' outputs, and of the
      gradients of linear layers' outputs: Format (integers), Float16 (halves), a NumberFormat of your own, or None for
      float32 (default).
    - `norm_inputs`: format of the outputs of linear layers that a BatchNorm normalizes by batch statistics. They are
      stored for the backward pass, so in float32 they take more than half of the memory of activations. Channels share
      a range there before BatchNorm equalizes them: after depthwise layers, 8 bits can be too few.
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
    if not isinstance(precision, str) or precision not in PRECISIONS:
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
