"""What is quantized, with which ranges, in which training; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import PlanError, RunError
from edgelearn.experiments.config import TrainingConfig
from edgelearn.graph import Precision
from edgelearn.ops import DSGC, CurrentMinMax, Estimator, Float16, Format, InHindsightMinMax, Percentile, RunningMinMax

# "fixed" is the range of the first mini-batch, for good.
ESTIMATORS: dict[str, Estimator] = {
    "in-hindsight": InHindsightMinMax(),
    "current": CurrentMinMax(),
    "running": RunningMinMax(),
    "dsgc": DSGC(),
    "percentile": Percentile(),
    "fixed": InHindsightMinMax(momentum=1.0),
}
FLOAT, HALF = "fp32", "fp16"


@dataclass(frozen=True)
class PrecisionConfig(TrainingConfig):
    """A training of `task` (see tasks.TASKS) with kernels, activations and gradients of so many bits, "fp16" or "fp32".

    As in Fournarakis and Nagel 2021, weights are symmetric and have their own ranges (one for each tensor, or with
    `per_channel` one for each output channel), activations and gradients get theirs from `estimator`, and gradients are
    rounded stochastically. `norm_inputs` are what BatchNorm normalizes by the batch's statistics. `integers` stores
    what is rounded as what it is, and computes with int8, in place of simulating it; `trace` keeps what became of every
    tensor each so many steps (0: never). What is None is the task's. Raises RunError for values that can't be.
    """

    weights: str = "8"
    activations: str = "8"
    gradients: str = "8"
    per_channel: bool = False
    estimator: str = "in-hindsight"
    integers: bool = False
    norm_inputs: str = FLOAT
    trace: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator not in ESTIMATORS:
            raise RunError(f"'{self.estimator}' is not a range estimator: choose {', '.join(ESTIMATORS)}.")
        if self.trace < 0:
            raise RunError(f"trace is {self.trace}, but a number of steps isn't negative.")
        try:
            _ = self.precision
        except PlanError as error:
            raise RunError(str(error)) from None

    @property
    def precision(self) -> Precision:
        """The choice for the plan."""
        weights = _format(self.weights, symmetric=True, per_channel=self.per_channel)
        activations, gradients = _format(self.activations), _format(self.gradients, rounding="stochastic")
        estimator = ESTIMATORS[self.estimator]
        return Precision(
            weights, activations, gradients, estimator, traced=self.trace > 0, simulated=not self.integers,
            norm_inputs=_format(self.norm_inputs),
        )  # fmt: skip


def _format(bits: str, **more) -> Format | Float16 | None:
    if bits in (FLOAT, HALF):
        return Float16() if bits == HALF else None
    if not (isinstance(bits, str) and bits.isdecimal()):
        raise RunError(f"{bits!r} is no precision: give a number of bits, '2' to '16', or '{HALF}' or '{FLOAT}'.")
    return Format(int(bits), **more)
