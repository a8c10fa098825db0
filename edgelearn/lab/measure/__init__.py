"""One way to measure: worker processes, interleaved rounds with a noise check, statistics of times, and memory."""

from .cores import usable_cores
from .memory import PeakMemory
from .processes import Worker, WorkerError
from .rounds import Block, RoundsConfig, Sample, measure_in_turn, sample
from .statistics import MIN_ROUNDS, Ratio, compare, quartiles

__all__ = [
    "MIN_ROUNDS", "Block", "PeakMemory", "Ratio", "RoundsConfig", "Sample", "Worker", "WorkerError", "compare",
    "measure_in_turn", "quartiles", "sample", "usable_cores",
]  # fmt: skip
