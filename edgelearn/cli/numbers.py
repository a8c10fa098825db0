"""Types of numbers for argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf


def whole(least: int) -> Callable[[str], int]:
    """A type: whole numbers of at least `least`."""

    def parse(text: str) -> int:
        try:
            if (value := int(text)) >= least:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")

    return parse


def number(least: float = -inf, most: float = inf) -> Callable[[str], float]:
    """A type: finite numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            if least <= (value := float(text)) <= most and abs(value) < inf:
                return value
        except ValueError:
            pass
        limits = [f"at {word} {limit:g}" for word, limit in (("least", least), ("most", most)) if abs(limit) < inf]
        raise argparse.ArgumentTypeError(f"'{text}' is not a number{' of ' * bool(limits)}{' and '.join(limits)}")

    return parse
