"""What a run brings home, and the statistics on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

MIN_ROUNDS = 3
# Relative difference allowed between what contenders compute. With batch statistics, elements that sit on an edge
# of ReLU6 fall to either side by rounding alone, which moves the loss of the third step by about a thousandth.
AGREEMENT = 5e-3


@dataclass(frozen=True)
class Block:
    """A sample: the median of `steps` steps in a row, in seconds.

    `foreign` is the share of the cores that others used meanwhile; `attempts` how often the block was measured
    until that share was small enough, and `noisy` says that it never was, so this is the quietest of them.
    """

    seconds: float
    steps: int
    foreign: float
    attempts: int
    noisy: bool


@dataclass
class Lane:
    """One variant of one contender on one workload, in one environment, in one process.

    Memory is the process's, in bytes: after the imports, at its peak until the first steps are done, and at its peak
    afterwards (None where the kernel can't tell).
    """

    workload: str
    contender: str
    variant: str
    environment: str = ""
    import_seconds: float | None = None
    first_step_seconds: float | None = None
    probe: list[float] = field(default_factory=list)
    memory_after_imports: int | None = None
    memory_start: int | None = None
    memory_peak: int | None = None
    blocks: list[Block] = field(default_factory=list)
    error: str | None = None

    @property
    def label(self) -> str:
        return ", ".join(part for part in (f"{self.contender} {self.variant}".strip(), self.environment) if part)

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
        """Bytes that steps need on top of the imported framework, at their peak."""
        if self.memory_peak is None or self.memory_after_imports is None:
            return None
        return self.memory_peak - self.memory_after_imports

    @property
    def memory_process(self) -> int | None:
        """Bytes that the process held at its peak, imports and preparations included."""
        known = [size for size in (self.memory_start, self.memory_peak) if size is not None]
        return max(known, default=None)


@dataclass(frozen=True)
class Comparison:
    """Its time over the peer's time: the median over the rounds, and the quartiles.

    `refusal` says why the ratio must not be shown, and is None if it may be.
    """

    peer: str
    median: float
    peer_median: float
    ratio: float
    low: float
    high: float
    refusal: str | None


def compare(seconds: Sequence[float], peer_seconds: Sequence[float], peer: str = "") -> Comparison:
    """Compare block times measured in the same rounds, in the same order.

    Each round gives a ratio of two blocks measured close together, so what disturbs both drops out. The difference
    is the median of those ratios, as a factor above 1. The spread is the upper quartile over the lower one, or the
    factor between the median of ratios and the ratio of medians, if that is more: they part when one side alone was
    disturbed. A spread that isn't smaller than the difference refuses the ratio; swapping sides changes no verdict.
    """
    if len(seconds) != len(peer_seconds) or len(seconds) == 0:
        raise ValueError(f"Needs as many blocks on both sides, got {len(seconds)} and {len(peer_seconds)}.")
    median, peer_median = float(np.median(seconds)), float(np.median(peer_seconds))
    # In logarithms, where swapping the sides changes signs and nothing else.
    low, middle, high = np.quantile(np.log(seconds) - np.log(peer_seconds), (0.25, 0.5, 0.75))
    spread = max(high - low, abs(np.log(median) - np.log(peer_median) - middle))
    refusal = None
    if len(seconds) < MIN_ROUNDS:
        refusal = "too few rounds"
    elif spread >= abs(middle):
        refusal = "spread too large"
    low, ratio, high = (float(np.exp(value)) for value in (low, middle, high))
    return Comparison(peer, median, peer_median, ratio, low, high, refusal)


def fastest_peer(lanes: Iterable[Lane], subject: str) -> Lane | None:
    """The measured lane with the lowest median among those of other contenders than `subject`."""
    peers = [lane for lane in lanes if lane.measured and lane.contender != subject]
    return min(peers, key=lambda lane: lane.median, default=None)


def disagreeing(lanes: Iterable[Lane]) -> list[Lane]:
    """The lanes of one workload that compute something else than the rest.

    The yardstick is the median over contenders, so a contender with many variants has one vote; when two
    contenders stand against each other, both are in the list.
    """
    probed = [lane for lane in lanes if lane.measured and lane.probe]
    votes: dict[str, list[list[float]]] = {}
    for lane in probed:
        votes.setdefault(lane.contender, []).append(lane.probe)
    if not votes:
        return []
    yardstick = np.median([np.median(probes, axis=0) for probes in votes.values()], axis=0)
    allowed = AGREEMENT * np.abs(yardstick).max()
    return [lane for lane in probed if np.abs(lane.probe - yardstick).max() > allowed]
