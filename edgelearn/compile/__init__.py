"""The compiler: from a network to a plan, every launch of a step and the place of every byte, before anything runs."""

from .memory import Compress, Encoding, Invert, Mask, MemoryStrategy, Offload, Recompute, Store
from .page import Fusion
from .plan import Accounting, Explanation, Kind, Plan, ProgramKey, account, explain
from .planner import Combination, fusions, make_plan
from .precision import Precision, RangeMode
from .request import Request
from .search import Budget, BudgetLike, LaunchTimes

__all__ = [
    "Accounting",
    "Budget",
    "BudgetLike",
    "Combination",
    "Compress",
    "Encoding",
    "Explanation",
    "Fusion",
    "Invert",
    "Kind",
    "LaunchTimes",
    "Mask",
    "MemoryStrategy",
    "Offload",
    "Plan",
    "Precision",
    "ProgramKey",
    "RangeMode",
    "Recompute",
    "Request",
    "Store",
    "account",
    "explain",
    "fusions",
    "make_plan",
]  # fmt: skip
