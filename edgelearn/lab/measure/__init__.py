"""One way to measure: worker processes, interleaved rounds with a noise check, statistics of times, and memory."""

from .cores import usable_cores
from .memory import PeakMemory
from .processes import Worker, WorkerError
from .rounds import Block, RoundsConfig, Sample, measure_in_turn, sample
from .statistics import ADVICE, MIN_ROUNDS, REMEDY, Ratio, compare, disturbance, quartiles

__all__ = [
    "ADVICE", "MIN_ROUNDS", "REMEDY", "Block", "PeakMemory", "Ratio", "RoundsConfig", "Sample", "Worker", "WorkerError",
    "compare", "disturbance", "measure_in_turn", "quartiles", "sample", "usable_cores",
]  # fmt: skip
