"""Losses that are plain functions: their steps are traced, differentiated and written as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isinf, isnan
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .emit import Answers, Control, Emitter
from .formula import REDUCTIONS, Step, Symbol, Tape, evaluate
from .loss import Loss
from .tensor import Tensor

OUTPUTS, TARGETS = 0, 1  # places of the variables
CODE = {  # OpenCL C of a step, by its terms
    "abs": "fabs({0})", "add": "{0} + {1}", "divide": "{0} / {1}", "equal": "{0} == {1}", "erf": "erf({0})",
    "exp": "exp({0})", "expm1": "expm1({0})", "greater": "{0} > {1}", "greater_equal": "{0} >= {1}",
    "less": "{0} < {1}", "less_equal": "{0} <= {1}", "log": "log({0})", "log1p": "log1p({0})",
    "logical_and": "{0} != 0.0f && {1} != 0.0f", "logical_or": "{0} != 0.0f || {1} != 0.0f",
    "multiply": "{0} * {1}", "not_equal": "{0} != {1}", "power": "pow({0}, {1})", "rsqrt": "1.0f / sqrt({0})",
    "sigmoid": "1.0f / (1.0f + exp(-{0}))", "sign": "{0} > 0.0f ? 1.0f : {0} < 0.0f ? -1.0f : {0}",
    "sqrt": "sqrt({0})", "square": "{0} * {0}", "subtract": "{0} - {1}", "tanh": "tanh({0})",
    "where": "{0} != 0.0f ? {1} : {2}", "clip": "{0} < {1} ? {1} : {0} > {2} ? {2} : {0}",
}  # fmt: skip
KERNEL = """#include "logits.h"

INLINE float group_most(const float value, __local float *shares) {{
  const int me = get_local_id(0);
  shares[me] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  float most = shares[0];
  for (int i = 1; i < GROUP; i++) most = shares[i] > most ? shares[i] : most;
  barrier(CLK_LOCAL_MEM_FENCE);
  return most;
}}

KERNEL own_loss(VALUE_LOSS_ARGUMENTS GRADIENT_ARGUMENTS) {{
  __local float shares[GROUP];
  input x = ITEM_START(x), targets = ITEM_START(targets);
  const int row = get_group_id(0), me = get_local_id(0);
  const float own = WEIGHT_OF(row);
{loss}
  if (me == 0) {{
    START(losses)[row] = own * v{result};
    START(right)[row] = 0.0f;
  }}
#if GRADIENT
{rows}
  const float weight = START(scalars)[INVERSE_BATCH] * own;
  for (int c = me; c < padded(classes); c += GROUP) {{
    const size_t at = logit_at(c, n, row);
    float slope = 0.0f;
    if (c < classes) {{
{slope}
      slope = v{gradient} * weight;
    }}
    START(dx)[at] = slope;
  }}
#endif
}}
"""


@dataclass(frozen=True)
class FormulaLoss(Loss):
    """A loss of one's own, from a function `f(xp, targets, outputs)`: see `formula_loss`.

    Arguments:
    - `name`: of the function, for errors and records.
    - `steps`: what it computes, and its derivative (see ops/formula.py).
    - `result`, `gradient`: numbers of the steps that are the loss of a row, and its derivative by each output.
    """

    target_dtype: ClassVar[str] = "float32"
    head: ClassVar[str] = ""
    accuracy: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = True

    name: str
    steps: tuple[Step, ...]
    result: int
    gradient: int

    @property
    def settings(self) -> tuple[float, ...]:
        return ()

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        loss, slope = evaluate(self.steps, [self.result, self.gradient], outputs, targets)
        losses = np.broadcast_to(loss, (len(outputs), 1))[:, 0]
        return losses, np.broadcast_to(slope, outputs.shape) / len(outputs)

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        return self.emit_rows(self.source, "own_loss", e, outputs, control, gradient)

    @property
    def source(self) -> str:
        """The kernel in OpenCL C. Values of single outputs are computed again in each pass over a row."""
        writer = _Writer(self.steps)
        loss = writer.rows(self.result)
        rows = writer.rows(self.gradient)
        slope = writer.elements([self.gradient], "      ")
        return KERNEL.format(loss=loss, rows=rows, slope=slope, result=self.result, gradient=self.gradient)


class _Writer:
    """Writes steps as OpenCL C: value number i is v<i>."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.tape, self.written = Tape.of(steps), set[int]()

    def needed(self, wanted: Sequence[int]) -> list[int]:
        """The steps that `wanted` are computed from, and these, in order."""
        found, waiting = set[int](), list(wanted)
        while waiting:
            if (number := waiting.pop()) not in found:
                found.add(number)
                waiting += self.tape.terms(number)
        return sorted(found)

    def rows(self, wanted: int) -> str:
        """The values of a row that `wanted` needs, and itself if it is one; reductions are loops."""
        lines: list[str] = []
        for number in self.needed([wanted]):
            if number in self.written or not self.tape.is_row(number):
                continue
            self.written.add(number)
            name, term, *_ = (*self.tape.steps[number], 0)
            if name not in REDUCTIONS:
                lines.append(f"  const float v{number} = {self.code(number)};")
                continue
            start, add = ("0.0f", f"s{number} += v{term}") if name == "sum" else (
                "-INFINITY", f"s{number} = s{number} > v{term} ? s{number} : v{term}"
            )  # fmt: skip
            total = "group_total" if name == "sum" else "group_most"
            lines += [
                f"  float s{number} = {start};", "  for (int c = me; c < classes; c += GROUP) {",
                "    const size_t at = logit_at(c, n, row);", self.elements([term], "    "), f"    {add};", "  }",
                f"  const float v{number} = {total}(s{number}, shares);",
            ]  # fmt: skip
        return "\n".join(lines)

    def elements(self, wanted: Sequence[int], indent: str) -> str:
        """The values of one output that `wanted` need, up to reductions."""
        found, waiting = set[int](), list(wanted)
        while waiting:
            number = waiting.pop()
            if number not in found and not self.tape.is_row(number):
                found.add(number)
                waiting += self.tape.terms(number)
        return "\n".join(f"{indent}const float v{number} = {self.code(number)};" for number in sorted(found))

    def code(self, number: int) -> str:
        name, *rest = self.tape.steps[number]
        if name == "constant":
            return _literal(rest[0])
        if name == "count":
            return "(float)classes"
        if name == "variable":
            return "x[at]" if rest[0] == OUTPUTS else "targets[at]"
        terms = len(self.tape.terms(number))
        return CODE[name].format(*(f"v{term}" for term in rest[:terms]), *map(_literal, rest[terms:]))


def _literal(value: float) -> str:
    if isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return "NAN" if isnan(value) else f"({float(np.float32(value))!r}f)"


def formula_loss(function: Callable[..., Any]) -> FormulaLoss:
    """Return the loss that a function is.

    >>> def log_cosh(xp, targets, outputs):
    ...     d = xp.abs(outputs - targets)
    ...     return d + xp.log1p(xp.exp(-2 * d)) - 0.6931472
    >>> model.compile("adam", loss=log_cosh)

    Arguments:
    - `function`: `f(xp, targets, outputs)` returns a loss for each output, whose mean counts, or for each row, by
      `xp.sum(…, axis=-1)` and the like. Targets are float, in the shape of the outputs, (n, ..., outputs). Outputs
      are the network's, probabilities if it ends in a Softmax. `xp` has the functions that ops/formula.py lists.

    Its derivative is found by reverse-mode differentiation of its steps. Raises PlanError for a function that can't be
    traced, naming the step, and for one that doesn't depend on the outputs.
    """
    tape, name = Tape(), getattr(function, "__name__", type(function).__name__)
    outputs, targets = tape.variable(OUTPUTS), tape.variable(TARGETS)
    try:
        result = function(tape, targets, outputs)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise PlanError(
            f"The loss {name} is no formula f(xp, targets, outputs): {error}. A formula computes numbers by operators "
            f"and the functions of xp, and can't index, branch or call NumPy: for another loss write a Loss with a "
            f"kernel (see the guide Extend)."
        ) from None
    if not isinstance(result, Symbol):
        raise PlanError(f"The loss {name} returns {result!r:.60}, which isn't computed from its outputs by xp.")
    if not tape.is_row(result.number):
        result = tape.mean(result, axis=-1)
    (gradient,) = tape.gradients(result, [outputs])
    if tape.steps[gradient.number] == ("constant", 0.0):
        raise PlanError(f"The loss {name} doesn't depend on the outputs, so that there is nothing to train by it.")
    return FormulaLoss(name, tuple(tape.steps), result.number, gradient.number)
