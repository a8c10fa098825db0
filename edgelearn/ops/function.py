"""Functions of single values, which kernels apply as they write."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """A function of single values: a pair of inline functions in OpenCL C, `NAME_forward` and `NAME_backward`.

    Arguments:
    - `name`: of the pair (default "linear").
    - `parameters`: up to two numbers that it is compiled with (default none).
    - `two_slopes`: the derivative has two values only, those where the output is 0 and where it is 1 (default False).
      Then a mask of bits can replace the output.
    """

    name: str = "linear"
    parameters: tuple[float, ...] = ()
    two_slopes: bool = False

    def macros(self, prefix: str = "activation") -> dict[str, Any]:
        """The macros that select it. Names such as tanh are macros themselves in some drivers, so an underscore is
        added here."""
        numbers = {f"{prefix}_{n}": _literal(value) for n, value in zip("ab", self.parameters, strict=False)}
        return {prefix: f"{self.name}_"} | numbers


LINEAR = Function()
RELU = Function("relu", two_slopes=True)
RELU6 = Function("relu6", two_slopes=True)


def _literal(value: float) -> str:
    """The nearest float32 as OpenCL C."""
    if abs(value) == inf:
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(np.float32(value)).hex()}f"
