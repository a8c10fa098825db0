"""How much memory training takes when activations come back in other ways than by being kept. See README.md beside
this file."""

from .compare import Measured, compare
from .config import MemoryConfig
from .job import MemoryJob
from .lanes import BUDGETS, LANES, lane_plan
from .on_the_spot import check_process, check_times
from .trained import check_trained
from .verdicts import check

__all__ = [
    "BUDGETS", "LANES", "Measured", "MemoryConfig", "MemoryJob", "check", "check_process", "check_times",
    "check_trained", "compare", "lane_plan",
]  # fmt: skip
