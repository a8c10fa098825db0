"""The compared trainings: what is quantized, to how many bits, with which observer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from edgelearn.errors import UsageError

from .config import FLOAT, OBSERVERS, PrecisionConfig

# Quantized to 8 bits in the three tables of the paper: gradients (1), activations (2), everything (3).
PARTS = {
    "gradients": {"weights": FLOAT, "activations": FLOAT},
    "activations": {"weights": FLOAT, "gradients": FLOAT},
    "everything": {},
}


@dataclass(frozen=True)
class Variant:
    """A row of a comparison: its name, and the settings in which it differs from the others."""

    name: str
    settings: dict[str, Any]

    def config(self, base: PrecisionConfig, seed: int) -> PrecisionConfig:
        """The configuration of a training."""
        return replace(base, **self.settings, seed=seed)


def variants() -> list[Variant]:
    """float32 and the other compute types; each part quantized, with each observer; everything quantized with a range
    for each channel of kernels, with another momentum of ranges, with the first layer in float32, in memory with int8
    kernels, and with fewer bits for gradients."""
    observers = "in-hindsight", "current"
    floats: dict[str, Any] = dict.fromkeys(("weights", "activations", "gradients"), FLOAT)
    result = [Variant(FLOAT, floats)]
    result += [Variant(name, floats | {"compute": name}) for name in ("tf32", "bf16", "fp16")]
    for part, settings in PARTS.items():
        result += [Variant(f"{part}, {name}", settings | {"observer": name}) for name in OBSERVERS]
    for name in observers:
        result.append(Variant(f"everything, per-channel weights, {name}", {"per_channel": True, "observer": name}))
    for momentum in (0.5, 0.99):
        result.append(Variant(f"everything, ranges of momentum {momentum}", {"momentum": momentum}))
    result.append(Variant("everything, first layer in float32", {"first_in_fp32": True}))
    both = {"per_channel": True, "first_in_fp32": True}
    result.append(Variant("everything, per-channel weights, first layer in float32", both))
    for name in observers:
        result.append(Variant(f"integers, {name}", {"integers": True, "observer": name}))
    result.append(Variant("integers, per-channel weights, in-hindsight", {"integers": True, "per_channel": True}))
    for bits in (6, 4):
        for name in observers:
            result.append(Variant(f"gradients of {bits} bits, {name}", {"gradients": str(bits), "observer": name}))
    return result


def select(patterns: Sequence[str]) -> list[Variant]:
    """The variants whose names match one of `patterns` (as file names; all if there is none). Raises UsageError for a
    pattern without a match."""
    known = variants()
    for pattern in patterns:
        if not any(fnmatchcase(variant.name, pattern) for variant in known):
            raise UsageError(f"No variant is called '{pattern}'. Known: {'; '.join(each.name for each in known)}.")
    return [each for each in known if not patterns or any(fnmatchcase(each.name, p) for p in patterns)]
