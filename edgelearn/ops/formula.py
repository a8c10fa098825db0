"""Formulas: functions of values as one expression of a namespace `xp`, for all who compute them.

A formula is `formula(xp, *values)`. `xp` is `NUMPY` for the float64 references, `torch` or `keras.ops` in converted
networks, an exporter's namespace whose functions add operators to a graph, or a `Tape`, which writes down the steps. It
calls only functions that all of these have by one name: abs, clip, erf, exp, expm1, log, log1p, maximum, minimum,
ones_like, rsqrt, sigmoid, sqrt, square, tanh, where and zeros_like. Formulas of rows, such as losses, may also call
those of `REDUCTIONS`, softmax and log_softmax, all with axis=-1.

Derivatives are steps on the same tape, by reverse-mode differentiation (Griewank and Walther 2008): NumPy evaluates
them in the references, and generated kernels on the device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, pi, sqrt
from typing import Any

import numpy as np


class _NumPy:
    """NumPy, and functions that it has by other names or not at all."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def erf(x: Any) -> Any:
        from scipy.special import erf

        return erf(x)

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return x**-0.5

    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(-x)) without overflow."""
        return (1 + np.tanh(x / 2)) / 2


NUMPY = _NumPy()
SLOPES: dict[str, Callable[[Any, Any, Any], Any]] = {  # derivative at x, where the value is y
    "abs": lambda xp, x, y: xp.sign(x),
    "erf": lambda xp, x, y: 2 / sqrt(pi) * xp.exp(-xp.square(x)),
    "exp": lambda xp, x, y: y,
    "expm1": lambda xp, x, y: y + 1,
    "log": lambda xp, x, y: 1 / x,
    "log1p": lambda xp, x, y: 1 / (1 + x),
    "rsqrt": lambda xp, x, y: -0.5 * y**3,
    "sigmoid": lambda xp, x, y: y * xp.sigmoid(-x),
    "sign": lambda xp, x, y: 0.0,
    "sqrt": lambda xp, x, y: 0.5 / y,
    "square": lambda xp, x, y: 2 * x,
    "tanh": lambda xp, x, y: 1 - xp.square(y),
}
REDUCTIONS = ("sum", "mean", "max", "min")  # of a row's values
COMPARISONS = {
    "greater": operator.gt, "less": operator.lt, "greater_equal": operator.ge, "less_equal": operator.le,
    "equal": operator.eq, "not_equal": operator.ne, "logical_and": operator.and_, "logical_or": operator.or_,
}  # fmt: skip
ARITHMETIC = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
Step = tuple[Any, ...]  # name of a function, and what it is of: numbers of earlier steps, or settings


@dataclass(frozen=True, eq=False)
class Symbol:
    """The value of a step. It is a number or an array of no known shape, so a formula can't branch on it."""

    __array_ufunc__ = None  # arrays leave operators to this class
    __hash__ = None  # type: ignore[assignment]
    tape: Tape
    number: int

    def _of(self, name: str, *values: Any) -> Symbol:
        return self.tape.record(name, *values)

    def __add__(self, other: Any) -> Symbol:
        return self._of("add", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return self._of("add", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return self._of("subtract", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return self._of("subtract", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return self._of("multiply", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return self._of("multiply", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return self._of("divide", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self._of("divide", other, self)

    def __neg__(self) -> Symbol:
        return self._of("multiply", -1.0, self)

    def __pow__(self, power: float) -> Symbol:
        if isinstance(power, Symbol):
            raise TypeError("a power of a computed value: write exp(power * log(x))")
        return self._of("power", self, float(power))

    def __gt__(self, other: Any) -> Symbol:
        return self._of("greater", self, other)

    def __lt__(self, other: Any) -> Symbol:
        return self._of("less", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return self._of("greater_equal", self, other)

    def __le__(self, other: Any) -> Symbol:
        return self._of("less_equal", self, other)

    def __eq__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self._of("equal", self, other)

    def __ne__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self._of("not_equal", self, other)

    def __and__(self, other: Any) -> Symbol:
        return self._of("logical_and", self, other)

    def __or__(self, other: Any) -> Symbol:
        return self._of("logical_or", self, other)

    def __bool__(self) -> bool:
        raise TypeError("it branches on a value: write where(condition, a, b)")


class Tape:
    """The steps of formulas, and the namespace that records them; equal steps are recorded once. At corners `clip` has
    derivative 0, as in TensorFlow, of equal values `maximum` and `minimum` take the first, and the slope of a root at
    0, which isn't finite, counts as 0."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[Step, int] = {}
        self._rows: list[bool] = []  # for each step

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Tape:
        """A tape with these steps."""
        tape = cls()
        for step in steps:
            tape._step(*step)
        return tape

    def variable(self, place: int) -> Symbol:
        """The value number `place` that a formula is of."""
        return self._step("variable", place)

    def record(self, name: str, *values: Any) -> Symbol:
        """The value of a function of symbols and numbers; the last of a power's values is its exponent."""
        settings = values[1:] if name in ("power", "clip") else ()
        terms = values[: len(values) - len(settings)]
        found = _simplified(name, *terms) if name in ARITHMETIC else None
        if found is not None:
            return self._symbol(found)
        return self._step(name, *(self._symbol(term).number for term in terms), *settings)

    def _symbol(self, value: Any) -> Symbol:
        if isinstance(value, Symbol):
            return value
        if isinstance(value, np.ndarray | list | tuple):
            raise TypeError(f"it holds an array, {np.shape(value)}: formulas are of numbers and of what they get")
        return self._step("constant", float(value))

    def _step(self, *step: Any) -> Symbol:
        number = self._numbers.setdefault(step, len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
            shared = step[0] in ("constant", "count", *REDUCTIONS)
            self._rows.append(shared or (step[0] != "variable" and all(map(self.is_row, self.terms(number)))))
        return Symbol(self, number)

    # -- the functions of formulas -------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        if name in REDUCTIONS:
            return lambda x, axis=None, keepdims=False: self._reduced(name, x, axis)
        if name not in SLOPES:
            raise AttributeError(f"{name} is no function of formulas: there are {', '.join(FUNCTIONS)}")
        return lambda x: self.record(name, x)

    def _reduced(self, name: str, x: Any, axis: int | None) -> Symbol:
        if axis != -1:
            raise TypeError(f"{name} is over the values of a row: write {name}(x, axis=-1)")
        if name == "mean":
            return self.sum(x, axis=-1) / self._step("count")
        if name == "min":
            return -self.max(-x, axis=-1)
        if self.is_row(self._symbol(x).number):
            return x * self._step("count") if name == "sum" else self._symbol(x)
        return self.record(name, x)

    def zeros_like(self, x: Any) -> Symbol:
        return self._symbol(0.0)

    def ones_like(self, x: Any) -> Symbol:
        return self._symbol(1.0)

    def where(self, condition: Any, a: Any, b: Any) -> Symbol:
        return self.record("where", condition, a, b)

    def maximum(self, a: Any, b: Any) -> Symbol:
        return self.where(self.record("greater_equal", a, b), a, b)

    def minimum(self, a: Any, b: Any) -> Symbol:
        return self.where(self.record("less_equal", a, b), a, b)

    def clip(self, x: Any, low: float, high: float) -> Symbol:
        return self.record("clip", x, float(low), float(high))

    def log_softmax(self, x: Any, axis: int | None = None) -> Symbol:
        shifted = x - self.max(x, axis=axis)
        return shifted - self.log(self.sum(self.exp(shifted), axis=axis))

    def softmax(self, x: Any, axis: int | None = None) -> Symbol:
        return self.exp(self.log_softmax(x, axis=axis))

    # -- derivatives ---------------------------------------------------------------------------------------------

    def is_row(self, number: int) -> bool:
        """True if all values of a row share this one: of reductions, and of constants."""
        return self._rows[number]

    def terms(self, number: int) -> tuple[int, ...]:
        """The steps that a step reads."""
        name, *values = self.steps[number]
        if name in ("constant", "variable", "count"):
            return ()
        return tuple(values[:1] if name in ("power", "clip") else values)

    def gradients(self, result: Symbol, wanted: Sequence[Symbol]) -> list[Symbol]:
        """The derivatives of `result` by each of `wanted`, or, of a row's result, of its sum over rows."""
        found: dict[int, Symbol] = {result.number: self._symbol(1.0)}
        for number in range(result.number, -1, -1):
            if number not in found or not self.terms(number):
                continue
            for term, slope in self._slopes(number):
                share = found[number] * slope
                if self.is_row(term) and not self.is_row(number):
                    share = self.sum(share, axis=-1)
                found[term] = found[term] + share if term in found else share
        return [found.get(symbol.number, self._symbol(0.0)) for symbol in wanted]

    def _slopes(self, number: int) -> list[tuple[int, Any]]:
        """(a term, the derivative by it) for each term of a step that has one."""
        name, *values = self.steps[number]
        y, terms = Symbol(self, number), self.terms(number)
        x, *others = (Symbol(self, term) for term in terms)
        if name in SLOPES:
            return [(terms[0], SLOPES[name](self, x, y))]
        if name in ("add", "subtract"):
            return [(terms[0], 1.0), (terms[1], 1.0 if name == "add" else -1.0)]
        if name == "multiply":
            return [(terms[0], others[0]), (terms[1], x)]
        if name == "divide":
            return [(terms[0], 1 / others[0]), (terms[1], -y / others[0])]
        if name == "power":
            power = values[1]
            base = self.where(x == 0.0, inf, x) if 0 < power < 1 else x
            return [(terms[0], power * base ** (power - 1) if power else 0.0)]
        if name == "clip":
            return [(terms[0], self.where((x > values[1]) & (x < values[2]), 1.0, 0.0))]
        if name == "where":
            return [(terms[1], self.where(x, 1.0, 0.0)), (terms[2], self.where(x, 0.0, 1.0))]
        if name == "sum":
            return [(terms[0], 1.0)]
        if name == "max":
            equal = self.where(x == y, 1.0, 0.0)
            return [(terms[0], equal / self.sum(equal, axis=-1))]
        return []  # comparisons


FUNCTIONS = (
    *sorted((*SLOPES, "clip", "maximum", "minimum", "ones_like", "where", "zeros_like")),
    *(f"{name}(…, axis=-1)" for name in (*REDUCTIONS, "log_softmax", "softmax")),
)


def _simplified(name: str, a: Any, b: Any) -> Any:
    """A sum with 0, a product with 0 or 1, or a quotient by 1, without a step; else None."""
    constant = [_constant(value) for value in (a, b)]
    if None not in constant and (name != "divide" or constant[1]):
        return ARITHMETIC[name](*constant)
    if name == "multiply" and 0.0 in constant:
        return 0.0
    neutral = 1.0 if name in ("multiply", "divide") else 0.0
    if constant[1] == neutral:
        return a
    return b if constant[0] == neutral and name in ("add", "multiply") else None


def _constant(value: Any) -> float | None:
    """The number that a value is, or None."""
    if isinstance(value, Symbol):
        name, *rest = value.tape.steps[value.number]
        return rest[0] if name == "constant" else None
    return None if isinstance(value, np.ndarray) else float(value)


def evaluate(steps: Sequence[Step], wanted: Sequence[int], *variables: Any) -> list[Any]:
    """The values of the steps `wanted`, by NumPy, for values of the variables: arrays, or numbers where they are
    constant. Rows are along the last axis."""
    values: list[Any] = []
    for name, *rest in steps[: max(wanted) + 1]:
        if name == "constant":
            found = rest[0]
        elif name == "variable":
            found = variables[rest[0]]
        elif name == "count":
            found = float(np.shape(variables[0])[-1])
        elif name in ("power", "clip"):
            found = values[rest[0]] ** rest[1] if name == "power" else np.clip(values[rest[0]], *rest[1:])
        elif name in REDUCTIONS:
            found = getattr(np, name)(values[rest[0]], axis=-1, keepdims=True)
        else:
            terms = [values[number] for number in rest]
            known = (ARITHMETIC | COMPARISONS).get(name)
            found = known(*terms) if known else getattr(NUMPY, name)(*terms)
        values.append(found)
    return [values[number] for number in wanted]


def differentiate(formula: Callable[..., Any], *values: Any) -> list[Any]:
    """Return the derivatives of `formula` by each of `values`: arrays, or numbers where they are constant."""
    tape = Tape()
    variables = [tape.variable(place) for place in range(len(values))]
    slopes = tape.gradients(tape._symbol(formula(tape, *variables)), variables)
    return evaluate(tape.steps, [slope.number for slope in slopes], *values)
