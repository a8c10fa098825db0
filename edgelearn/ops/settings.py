"""Checks of numbers that users give: a wrong type is refused by name, not by Python in the middle of a step."""

from __future__ import annotations

from math import inf
from numbers import Integral, Real
from typing import Any

from edgelearn.errors import EdgelearnError, PlanError


def is_number(value: Any) -> bool:
    """True for a real number that is finite; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < inf


def whole(name: str, value: Any, least: int = 1, error: type[EdgelearnError] = PlanError) -> int:
    """Return `value` as an int. Raises `error` unless it is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"{name} is a whole number of at least {least}, not {value!r:.60}.")
    return int(value)


def number(
    name: str, value: Any, least: float = -inf, below: float = inf, error: type[EdgelearnError] = PlanError
) -> float:
    """Return `value` as a float. Raises `error` unless it is a finite number from `least` to below `below`."""
    if not is_number(value) or not least <= value < below:
        limits = [f"at least {least:g}"] * (least > -inf) + [f"below {below:g}"] * (below < inf)
        raise error(f"{name} is a finite number{''.join(f' {limit}' for limit in limits[:1])}"
                    f"{''.join(f' and {limit}' for limit in limits[1:])}, not {value!r:.60}.")  # fmt: skip
    return float(value)
