"""Compile a network into a plan: every launch of a step and the place of every byte, before anything runs."""

from .accounting import Accounting, account
from .explain import Explanation, explain
from .memory.budget import Budget, BudgetLike
from .memory.launch_times import LaunchTimes
from .memory.planner import make_plan
from .memory.strategies import Compress, Invert, Mask, Offload, Recompute
from .plan import Plan
from .precision.precision import Precision, RangeMode
from .program import Kind, ProgramKey
from .request import Request

__all__ = [
    "Accounting", "Budget", "BudgetLike", "Compress", "Explanation", "Invert", "Kind", "LaunchTimes", "Mask", "Offload",
    "Plan", "Precision", "ProgramKey", "RangeMode", "Recompute", "Request", "account", "explain", "make_plan",
]  # fmt: skip
