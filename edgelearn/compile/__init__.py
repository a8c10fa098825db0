"""The compiler: from a network to a plan, every launch of a step and the place of every byte, before anything runs."""

from .accounting import Accounting, account
from .combination import Combination
from .explain import Explanation, explain
from .memory.budget import Budget, BudgetLike
from .memory.launch_times import LaunchTimes
from .memory.planner import make_plan
from .memory.strategies import Compress, Encoding, Invert, Mask, Offload, Recompute, Store, Strategy
from .plan import Plan
from .precision.precision import Precision, RangeMode
from .program import Kind, ProgramKey
from .request import Request

__all__ = [
    "Accounting", "Budget", "BudgetLike", "Combination", "Compress", "Encoding", "Explanation", "Invert", "Kind",
    "LaunchTimes", "Mask", "Offload", "Plan", "Precision", "ProgramKey", "RangeMode", "Recompute", "Request", "Store",
    "Strategy", "account", "explain", "make_plan",
]  # fmt: skip
