"""How much memory training takes when activations come back in other ways than by being kept. See README.md beside
this file."""

from .claims import check
from .compare import Measured, compare
from .config import MemoryConfig
from .job import MemoryExperiment
from .on_the_spot import check_process, check_times
from .plans import BUDGETS, LANES, lane_plan
from .trained import check_trained

__all__ = [
    "BUDGETS", "LANES", "Measured", "MemoryConfig", "MemoryExperiment", "check", "check_process", "check_times",
    "check_trained", "compare", "lane_plan",
]  # fmt: skip
