"""The unit of memory in reports, plans and errors: MB, 10^6 bytes, as in budgets."""

from __future__ import annotations

from math import ceil

MB = 10**6
UNITS = (("GB", 10**9), ("MB", MB), ("kB", 10**3), ("bytes", 1))


def megabytes(nbytes: int) -> str:
    """Bytes as text, rounded up, so that a budget of as much suffices: "12.35 MB", and with more digits below 1 MB."""
    if nbytes >= MB:
        return f"{ceil(nbytes / 10**4) / 100:,.2f} MB"
    return f"{ceil(nbytes / 10) / 10**5:.5f}".rstrip("0").rstrip(".") + " MB"
