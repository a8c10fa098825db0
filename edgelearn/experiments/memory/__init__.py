"""Memory of training when activations are recomputed, inverted, compressed or offloaded: see README.md here."""

from .claims import check
from .compare import Measured, compare
from .config import MemoryConfig
from .job import MemoryExperiment
from .machine_claims import check_process, check_times
from .plans import BUDGETS, PLANS, named_plan
from .trained import check_trained

__all__ = [
    "BUDGETS", "PLANS", "Measured", "MemoryConfig", "MemoryExperiment", "check", "check_process", "check_times",
    "check_trained", "compare", "named_plan",
]  # fmt: skip
