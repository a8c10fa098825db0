"""Which tensors of a step are quantized, how, and with which ranges: a choice of the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from edgelearn.errors import FormatError, PlanError
from edgelearn.graph.network import INPUT, Network
from edgelearn.ops.formats import AnyFormat, Format, format_from
from edgelearn.ops.observers import CurrentMinMax, InHindsightMinMax, Observer

KINDS = ("weights", "activations", "norm_inputs", "gradients")


class RangeMode(Enum):
    """How a program gets the ranges of quantized tensors: see `Precision.mode`."""

    OBSERVED = "observed"
    SEARCHED = "searched"
    MEASURED = "measured"


@dataclass(frozen=True)
class Precision:
    """Formats (Format, integers; Float16, halves) of the kernels of linear layers, of what layers write, and of the
    gradients of linear layers' outputs; None is float32. `norm_inputs` are what linear layers write for a BatchNorm to
    normalize by batch statistics: the backward pass needs them too, so that a plan that leaves them in float32 keeps
    more than half of what it keeps without any format. Channels share a range there before BatchNorm makes them alike:
    behind depthwise layers, 8 bits can be too few. Everything else stays float32: master weights, biases, BatchNorm,
    sums, and the network's output.

    Ranges of weights are always their own, and halves need none. `estimator` is that of activations, of `norm_inputs`
    and, unless `gradient_estimator` is given, of gradients. `exceptions` gives layers, by name or pattern, other bits
    where they have integers, or None for float32: {"conv1": 8, "dense": None}; the network's input is the activation of
    layer "input". `traced` also keeps, for each tensor of integers, signal to noise and cosine. Gradients pass through
    the rounding of activations as if it weren't there (straight-through, Bengio et al. 2013).

    `simulated` tensors are float32 and hold what integers or halves would stand for. Others are stored as what they
    are, but for gradients in half precision, which are rounded where they lie and don't last. Int8 kernels multiply
    integers wherever a layer's weights, input and gradient all have 8 bits or fewer. Halves are made floats where they
    are read: they save memory, not time. An overflow of half precision fails the step, which then changes nothing;
    gradients up to 2^-25 become 0, and no loss is scaled to prevent it.

    Raises PlanError for what can't be.
    """

    weights: AnyFormat | None = None
    activations: AnyFormat | None = None
    gradients: AnyFormat | None = None
    observer: Observer = InHindsightMinMax()  # noqa: RUF009
    gradient_observer: Observer | None = None
    exceptions: Mapping[str, int | None] = field(default_factory=dict)
    traced: bool = False
    simulated: bool = True
    norm_inputs: AnyFormat | None = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            fmt = getattr(self, kind)
            if not isinstance(fmt, AnyFormat | None):
                raise PlanError(f"The format of {kind} is such as Format(bits=8), Float16() or None, not {fmt!r}.")
            if fmt is not None and fmt.per_channel and kind != "weights":
                raise PlanError(f"A range for each channel is for weights alone: leave per_channel off for {kind}.")
        for observer in (self.observer, self.gradient_observer or self.observer):
            if not isinstance(observer, Observer):
                raise PlanError(f"Ranges come from an estimator such as CurrentMinMax(), not from {observer!r}.")
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
        if not self.weights.symmetric:
            raise PlanError("Integer kernels need symmetric weights: Format(symmetric=True).")

    def format(self, kind: str, layer: str) -> AnyFormat | None:
        """How `layer`'s tensor of `kind` (one of KINDS) is rounded."""
        fmt = getattr(self, kind)
        for pattern, bits in self.exceptions.items():
            if fmt is not None and fnmatchcase(layer, pattern):
                return None if bits is None else fmt.with_bits(bits)
        return fmt

    def check(self, network: Network) -> None:
        """Raises PlanError for exceptions that fit no layer of `network`."""
        for pattern in self.exceptions:
            if not any(fnmatchcase(name, pattern) for name in (INPUT, *network.nodes)):
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
        """Whether any tensor is to be integers."""
        return any(isinstance(getattr(self, kind), Format) for kind in KINDS)

    @property
    def _observers(self) -> list[Observer]:
        return [self.observer_of(kind) for kind in KINDS[1:] if isinstance(getattr(self, kind), Format)]

    def mode(self, training: bool, known: bool, step: int = 0) -> RangeMode:
        """How the program of a mini-batch, or of an evaluation, gets its ranges: OBSERVED, as its observers say;
        SEARCHED in the steps in which some search; MEASURED, all from their tensors, before any range is `known`."""
        if not known and any(e.start is None and (e.static if training else e.remembers) for e in self._observers):
            return RangeMode.MEASURED
        return RangeMode.SEARCHED if training and any(e.is_due(step) for e in self._observers) else RangeMode.OBSERVED

    def modes(self, training: bool) -> list[RangeMode]:
        """All that `mode` may say."""
        found = [RangeMode.OBSERVED, self.mode(training, known=False)]
        if training and any(e.is_due(1) for e in self._observers):
            found.append(RangeMode.SEARCHED)
        return list(dict.fromkeys(found))

    def is_static(self, kind: str, mode: RangeMode, training: bool) -> bool:
        """Whether a program takes the ranges of `kind` as they were left; else it measures the tensors."""
        observer = self.observer_of(kind)
        if mode == RangeMode.MEASURED:
            return observer.start is not None
        if not training:
            return observer.remembers
        return observer.static and not (mode == RangeMode.SEARCHED and observer.is_due(1))

    # -- as data -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict:
        """JSON-able; the inverse of `from_dict`."""
        found = {kind: fmt.to_dict() if (fmt := getattr(self, kind)) else None for kind in KINDS}
        own = self.gradient_observer.to_dict() if self.gradient_observer else None
        more = {"exceptions": dict(self.exceptions), "traced": self.traced, "simulated": self.simulated}
        return found | {"observer": self.observer.to_dict(), "gradient_observer": own} | more

    @classmethod
    def from_dict(cls, found: dict) -> Precision:
        """Raises FormatError for what isn't a precision."""
        try:
            settings = {**found}
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
        """Raises FormatError for what isn't a precision."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise FormatError(f"This is not a precision: {error}. Write it with Precision.to_json.") from None

    def __str__(self) -> str:
        """A table: format and ranges of each kind, and the exceptions."""
        lines = [] if self.simulated else ["stored as they are; int8 tensors are multiplied as integers"]
        for kind in KINDS:
            fmt = getattr(self, kind)
            ranges = f"; {self.observer_of(kind)}" if isinstance(fmt, Format) else ""
            lines.append(f"{kind:<12} {fmt or 'float32'}{ranges}")
        others = [f"{name} {'float32' if bits is None else f'{bits} bits'}" for name, bits in self.exceptions.items()]
        return "\n".join(lines + ([f"{'exceptions':<12} {', '.join(others)}"] if others else []))
