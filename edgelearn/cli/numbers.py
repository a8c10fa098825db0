"""Numbers that options take, refused before any work where they can't be: types for argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf

from edgelearn.compile.memory.budget import budgets
from edgelearn.errors import PlanError


def budget(text: str) -> str:
    """A memory budget, as edgelearn.compile.memory.budget reads it."""
    try:
        budgets(text)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def whole(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def parse(text: str) -> int:
        try:
            if (value := int(text)) >= least:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")

    return parse


def number(least: float = -inf, most: float = inf) -> Callable[[str], float]:
    """Finite numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            if least <= (value := float(text)) <= most and abs(value) < inf:
                return value
        except ValueError:
            pass
        limits = [f"at {word} {limit:g}" for word, limit in (("least", least), ("most", most)) if abs(limit) < inf]
        raise argparse.ArgumentTypeError(f"'{text}' is not a number{' of ' * bool(limits)}{' and '.join(limits)}")

    return parse
