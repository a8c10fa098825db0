"""Memory traffic of launches by tensor: each byte that a launch reads or writes counts once per launch. Predicted from
a plan, or counted as launches are enqueued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .launch import Launch


class Moved(NamedTuple):
    """Key of a traffic count: the launch's layer and kernel, the tensor, and "read" or "written"."""

    layer: str
    kernel: str
    tensor: str
    direction: str


class Traffic(Counter[Moved]):
    """Bytes by layer, kernel, tensor and direction. Traffics can be added and compared."""

    @classmethod
    def of(cls, launches: Iterable[Launch], times: int = 1) -> Traffic:
        """Count the bytes of `launches`, run `times` times."""
        traffic = cls()
        for launch in launches:
            for access in launch.accesses:
                for direction in ["read"] * access.reads + ["written"] * access.writes:
                    place = Moved(launch.layer, launch.kernel, access.buffer.name, direction)
                    traffic[place] += times * access.nbytes
        return traffic

    def by(self, field: str) -> dict[str, int]:
        """Bytes by "layer", "kernel", "tensor" or "direction"."""
        sums: Counter[str] = Counter()
        for moved, nbytes in self.items():
            sums[getattr(moved, field)] += nbytes
        return dict(sums)
