"""Units that add up four products of 8-bit integers: kernels/include/quads.h."""

from __future__ import annotations

from typing import Any

from .emit import Traits


def macros(traits: Traits) -> dict[str, Any]:
    """UNIT of kernels/include/quads.h, on a device that has one."""
    return {"unit": traits.quads} if traits.quads else {}
