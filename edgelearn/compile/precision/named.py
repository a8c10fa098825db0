"""Precisions by name: what is stored in float32, in half precision or in 8 bits."""

from __future__ import annotations

from edgelearn.errors import PlanError
from edgelearn.ops import Float16, Format

from .precision import Precision

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
