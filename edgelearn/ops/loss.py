"""Base of the losses, the losses of several outputs, and the count of losses and right answers; and losses that are
plain functions: their steps are traced, differentiated and written as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from math import isinf, isnan, prod
from typing import Any, ClassVar

import numpy as np

from edgelearn.errors import PlanError

from .constants import Counter
from .emit import Answers, Control, Emitter
from .formula import REDUCTIONS, Step, Symbol, Tape, evaluate
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class Loss:
    """Base of the losses: functions of a micro-batch's outputs (n, ..., outputs) and targets.

    Outputs are seen as rows, one for each example, or for each pixel of one. A loss gives a number for each row. The
    loss of a mini-batch is the mean over its examples, and over the rows of each (Keras's `sum_over_batch_size`); with
    weights, that of weight times loss, which isn't divided by the sum of the weights. So the shares of micro-batches
    add up to the mini-batch.

    - `target_dtype`: targets are "int32", a class number for each row, or "float32", a value for each output.
    - `head`: name of the op at the network's end that the loss computes itself, so that it is left out; else "".
    - `accuracy`: what is right or wrong: "rows", "values" of a row, or "" if nothing is.
    - `takes_weights`: its kernel multiplies each row by `control.weights`.
    - `ordered`: the role of an example depends on its place in the micro-batch, so examples are not shuffled and all
      micro-batches have one size.
    """

    target_dtype: ClassVar[str] = "int32"
    head: ClassVar[str] = "Softmax"
    accuracy: ClassVar[str] = "rows"
    takes_weights: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    kernel: ClassVar[tuple[str, str]]  # source and name of a kernel for `emit_rows`

    @property
    def settings(self) -> tuple[float, ...]:
        """Numbers that the kernel takes."""
        return astuple(self)

    @property
    def macros(self) -> dict[str, int]:
        """Macros that it is compiled with."""
        return {}

    def check(self, shape: Shape, examples: int) -> None:
        """Raises PlanError if the loss doesn't fit an output of this shape, without the batch, or micro-batches of this
        size."""

    def fits(self, examples: int) -> bool:
        """True if the loss is defined for this number of examples."""
        return True

    def labels(self, outputs: int) -> range:
        """The valid class numbers."""
        return range(outputs)

    def arranged(self, labels: np.ndarray, shape: Shape) -> np.ndarray:
        """Class numbers in the shape (examples, *rows) that the kernel reads, from those that a user gives (default:
        as they are). `shape`: of the output, without the batch. Raises PlanError for labels that have no loss."""
        return labels

    def reference(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(loss of each row, gradient of their mean to the outputs), in the outputs' own precision. Outputs are
        (rows, outputs)."""
        raise NotImplementedError

    def emit(self, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None) -> Answers:
        """Emit the loss and the right answers of each row, and `gradient`, that of the outputs, if it is given.
        Default: by the `kernel` with its `settings` and `macros`."""
        return self.emit_rows(*self.kernel, e, outputs, control, gradient, *self.settings, **self.macros)

    def emit_rows(
        self, source: str, kernel: str, e: Emitter, outputs: Tensor, control: Control, gradient: Tensor | None,
        *settings: float, **macros: int,
    ) -> Answers:  # fmt: skip
        """Emit a kernel that has a work-group for each row: see kernels/include/logits.h for its arguments, which
        `settings` follow."""
        rows = outputs.rows
        answers = Answers(e.tensor("losses", (1, rows)), e.tensor("right", (1, rows)))
        weights = [control.weights.read] if control.weights is not None else []
        more = [control.scalars.read, gradient.write] if gradient is not None else []
        e.launch(
            source, kernel, (rows * e.traits.group,), outputs.read, control.targets.read, *weights,
            answers.losses.write, answers.right.write, rows, outputs.channels, *map(float, settings), *more,
            whole=True, gradient=gradient is not None, weighted=control.weights is not None, **macros,
        )  # fmt: skip
        return answers


@dataclass(frozen=True)
class Losses:
    """The losses of a network's outputs. Training minimizes their weighted sum.

    Arguments:
    - `by_output`: a Loss for each output that has one, by its name.
    - `weights`: factors in the sum, by output (default 1 each).

    Raises PlanError for something else than losses, or for weights that aren't numbers of at least 0.
    """

    by_output: Mapping[str, Loss]
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, loss in self.by_output.items():
            if not isinstance(loss, Loss):
                raise PlanError(
                    f"The loss of '{name}' is an object such as SoftmaxCrossEntropy() or MeanSquaredError(), not "
                    f"{loss!r:.60}."
                )
        for name, weight in self.weights.items():
            if name not in self.by_output or not weight >= 0:
                raise PlanError(
                    f"loss_weights are numbers of at least 0 for {', '.join(self.by_output)}, got {weight!r} for "
                    f"'{name}'."
                )

    def check(self, shapes: Mapping[str, Shape], examples: int) -> None:
        """Raises PlanError if a loss doesn't fit the shape of its output, or micro-batches of this size."""
        for name, loss in self.by_output.items():
            loss.check(shapes[name], examples)

    def weight(self, output: str) -> float:
        return float(self.weights.get(output, 1.0))

    @property
    def ordered(self) -> bool:
        return any(loss.ordered for loss in self.by_output.values())

    def fits(self, examples: int) -> bool:
        return all(loss.fits(examples) for loss in self.by_output.values())


def rows_of(shape: Shape) -> int:
    """Rows of an example whose output has this shape."""
    return prod(shape[:-1])


def emit_count(e: Emitter, answers: Sequence[Answers], control: Control, n: int, weights: Sequence[float] = ()) -> None:
    """Emit the count of a micro-batch's `n` examples, and of the losses and right answers of each output. It comes
    last, since random numbers depend on the count of examples: forward, backward and recomputation must draw the same
    ones. `weights`: of the outputs' losses, if there are several."""
    for number, answer in enumerate(answers):
        rows, is_last = answer.losses.channels, number == len(answers) - 1
        place = Counter.OUTPUTS + 2 * number if len(answers) > 1 else 0
        e.launch(
            "softmax_cross_entropy.cl", "count_examples", (1,), answer.losses.read, answer.right.read,
            control.counters.update, rows, n if is_last else 0, n / rows, float(weights[number] if weights else 1.0),
            place, whole=True, gradient=False,
        )  # fmt: skip


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
