"""Bytes that launches move between kernels and memory, tensor by tensor: each byte that a launch reads and each that it
writes, once a launch. Predicted from the launches of a plan, or counted as they are enqueued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .launch import Launch


class Moved(NamedTuple):
    """Who moves what: the launch's layer and kernel, the tensor, and "read" or "written"."""

    layer: str
    kernel: str
    tensor: str
    direction: str


class Traffic(Counter[Moved]):
    """Bytes by layer, kernel, tensor and direction. Traffics add up, and compare."""

    @classmethod
    def of(cls, launches: Iterable[Launch], times: int = 1) -> Traffic:
        """The bytes of a list of launches, run so many times."""
        found = cls()
        for launch in launches:
            for access in launch.accesses:
                for direction in ["read"] * access.reads + ["written"] * access.writes:
                    place = Moved(launch.layer, launch.kernel, access.buffer.name, direction)
                    found[place] += times * access.nbytes
        return found

    def by(self, field: str) -> dict[str, int]:
        """Bytes by "layer", "kernel", "tensor" or "direction"."""
        sums: Counter[str] = Counter()
        for moved, nbytes in self.items():
            sums[getattr(moved, field)] += nbytes
        return dict(sums)
