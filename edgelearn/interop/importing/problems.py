"""Operators that have no counterpart here, collected so that one error lists them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgelearn.errors import UnsupportedError


@dataclass(frozen=True)
class Problem:
    """An operator that can't be translated.

    Arguments:
    - `kind`: the format's name for the operator.
    - `name`: its own name in the file.
    - `attributes`: its settings.
    - `reason`: what is missing.
    - `nearest`: what works instead; empty if nothing is near.
    """

    kind: str
    name: str
    attributes: Mapping[str, Any]
    reason: str
    nearest: str = ""

    def __str__(self) -> str:
        plain = {
            key: value for key, value in self.attributes.items() if value is not None and not isinstance(value, dict)
        }
        settings = ", ".join(f"{key}={value!r:.40}" for key, value in plain.items())
        nearest = f" Nearest: {self.nearest}" if self.nearest else ""
        return f"{self.kind} '{self.name}' ({settings or 'no attributes'}): {self.reason}{nearest}"


def unsupported(source: str, problems: tuple[Problem, ...]) -> UnsupportedError:
    """The error that lists `problems` of the file or module `source`."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    count = f"{len(problems)} operator{'s' * (len(problems) != 1)}"
    return UnsupportedError(f"{source}: {count} can't be imported:\n{lines}", problems=problems)
