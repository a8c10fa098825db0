"""Configuration of a training: bits, and where ranges come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from edgelearn.compile import Precision
from edgelearn.errors import ExtensionError, PlanError
from edgelearn.experiments.config import ConfigError, TrainingConfig, setting
from edgelearn.extensions import import_instance, is_reference
from edgelearn.graph import Network
from edgelearn.ops import (
    DSGC,
    CurrentMinMax,
    Float16,
    Format,
    InHindsightMinMax,
    LinearOp,
    NumberFormat,
    Observer,
    Percentile,
    RunningMinMax,
)
from edgelearn.ops.compute import STORED

OBSERVERS: dict[str, Observer] = {
    "in-hindsight": InHindsightMinMax(),
    "current": CurrentMinMax(),
    "running": RunningMinMax(),
    "dsgc": DSGC(),
    "percentile": Percentile(),
    "fixed": InHindsightMinMax(momentum=1.0),  # the range of the first mini-batch
}
FLOAT, HALF = "fp32", "fp16"
BITS = (*map(str, range(2, 17)), HALF, FLOAT)


def _bits(default: str, tensors: str) -> Any:
    text = f"format of {tensors}, in bits"
    return setting(default, text, choices=BITS, ordered=True, metavar="BITS", extensible=True)


@dataclass(frozen=True)
class PrecisionConfig(TrainingConfig):
    """A training of `task` (see tasks.TASKS) with quantized tensors, as in Fournarakis and Nagel 2021.

    Weights are symmetric and have ranges of their own, one per tensor or, with `per_channel`, one per output channel.
    Activations and gradients get their ranges from `observer`; gradients are rounded stochastically. None stands for
    the task's value. Raises ConfigError for an invalid value or combination.
    """

    weights: str = _bits("8", "weights")
    activations: str = _bits("8", "activations")
    gradients: str = _bits("8", "gradients")
    per_channel: bool = setting(False, "a range for each output channel of a kernel")
    observer: str = setting("in-hindsight", "where the ranges come from", choices=tuple(OBSERVERS), extensible=True)
    integers: bool = setting(
        False, "store integers and compute with int8; `edgelearn devices` says whether that is faster"
    )
    norm_inputs: str = _bits(FLOAT, "what BatchNorm normalizes by the batch's statistics")
    compute: str = setting(FLOAT, "type that linear layers multiply in", choices=tuple(STORED))
    momentum: float | None = setting(
        None, "share of the range before in the next one (default: the observer's)", minimum=0, maximum=1
    )
    first_in_fp32: bool = setting(False, "leave the pictures and the first layer in float32")
    trace: int = setting(0, "record every quantized tensor each so many steps; 0: never", minimum=0, metavar="STEPS")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            _ = self.precision
        except ExtensionError as error:
            raise ConfigError("observer" if is_reference(self.observer) else "weights", str(error)) from None
        except PlanError as error:
            raise ConfigError("integers", str(error)) from None

    @property
    def precision(self) -> Precision:
        """The precision of all layers; see `precision_of`."""
        weights = _format(self.weights, symmetric=True, per_channel=self.per_channel)
        activations, gradients = _format(self.activations), _format(self.gradients, rounding="stochastic")
        observer = OBSERVERS.get(self.observer) or import_instance(self.observer, Observer)
        if self.momentum is not None:
            if not isinstance(observer, InHindsightMinMax | RunningMinMax):
                raise ConfigError("momentum", f"the ranges of '{self.observer}' have none: leave it out.")
            observer = replace(observer, momentum=float(self.momentum))
        return Precision(
            weights, activations, gradients, observer, traced=self.trace > 0, simulated=not self.integers,
            norm_inputs=_format(self.norm_inputs),
        )  # fmt: skip

    def precision_of(self, network: Network) -> Precision:
        """The precision to compile a model of `network` with."""
        if not (self.first_in_fp32 and self.precision.quantizes):
            return self.precision
        first = next(name for name, node in network.nodes.items() if isinstance(node.op, LinearOp))
        return replace(self.precision, exceptions=dict.fromkeys((*network.inputs, first)))


def _format(bits: str, **arguments: Any) -> NumberFormat | None:
    """None is float32."""
    if is_reference(bits):
        return import_instance(bits, NumberFormat)
    if bits == FLOAT:
        return None
    return Float16() if bits == HALF else Format(int(bits), **arguments)
