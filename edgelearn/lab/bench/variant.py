"""A variant: what was measured of one way in which a contender does a workload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from edgelearn.lab.measure import Block

# Relative difference allowed between what contenders compute, by type. With batch statistics, elements that sit on an
# edge of ReLU6 fall to either side by rounding alone, which moves the loss of the third step by about a thousandth.
AGREEMENT = {"fp32": 5e-3, "tf32": 1e-2, "bf16": 3e-2, "fp16": 1e-2, "int8": 0.1}
FULL = "fp32"


@dataclass
class Variant:
    """One variant of one contender on one workload, in one environment, in one process.

    - `compute`: the type that it computes in; see `Workload`.
    - `probe`: numbers computed in the first steps, by which contenders are compared.
    - `memory_after_imports`, `memory_start`, `memory_peak`: main memory of the process in bytes: after the imports, at
      its peak until the first steps are done, and at its peak afterwards (None where the kernel can't tell).
    - `error`: why it failed, else None.
    """

    workload: str
    contender: str
    name: str
    environment: str = ""
    import_seconds: float | None = None
    first_step_seconds: float | None = None
    probe: list[float] = field(default_factory=list)
    memory_after_imports: int | None = None
    memory_start: int | None = None
    memory_peak: int | None = None
    blocks: list[Block] = field(default_factory=list)
    error: str | None = None
    compute: str = FULL

    @property
    def label(self) -> str:
        words = self.contender, "" if self.compute == FULL else self.compute, self.name
        return ", ".join(filter(None, (" ".join(filter(None, words)), self.environment)))

    @property
    def measured(self) -> bool:
        return self.error is None and bool(self.blocks)

    @property
    def seconds(self) -> list[float]:
        return [block.seconds for block in self.blocks]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def memory(self) -> int | None:
        """Peak of the steps minus memory after the imports, in bytes."""
        if self.memory_peak is None or self.memory_after_imports is None:
            return None
        return self.memory_peak - self.memory_after_imports

    @property
    def memory_process(self) -> int | None:
        """Peak of the process, imports and preparations included, in bytes."""
        known = [size for size in (self.memory_start, self.memory_peak) if size is not None]
        return max(known, default=None)


def fastest_peer(variants: Iterable[Variant], subject: str) -> Variant | None:
    """The measured variant with the lowest median among those of other contenders than `subject`."""
    peers = [variant for variant in variants if variant.measured and variant.contender != subject]
    return min(peers, key=lambda variant: variant.median, default=None)


def disagreeing(variants: Iterable[Variant]) -> list[Variant]:
    """The variants of one workload that compute other numbers than the rest.

    The yardstick is the median over contenders, so a contender with many variants has one vote; if two contenders
    contradict each other, both are in the list. Where there is float32, it alone is the yardstick; other types may
    differ from it by their rounding.
    """
    probed = [variant for variant in variants if variant.measured and variant.probe]
    votes: dict[str, list[list[float]]] = {}
    full = [variant for variant in probed if variant.compute == FULL]
    for variant in full or probed:
        votes.setdefault(variant.contender, []).append(variant.probe)
    if not votes:
        return []
    yardstick = np.median([np.median(probes, axis=0) for probes in votes.values()], axis=0)
    size = np.abs(yardstick).max()
    return [v for v in probed if np.abs(v.probe - yardstick).max() > AGREEMENT[v.compute] * size]
