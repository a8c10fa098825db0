"""Networks as data; plans that lay out their steps; sessions that run them."""

from .accounting import Accounting, account
from .budget import Budget, BudgetLike
from .costs import Costs
from .network import INPUT, Network, Node, Parameter
from .plan import Plan, Request
from .planner import make_plan
from .precision import Precision
from .reversible import reversible
from .session import Session
from .split import Split, split_frozen
from .ways import Compress, Invert, Mask, Page, Recompute

__all__ = [
    "INPUT", "Accounting", "Budget", "BudgetLike", "Compress", "Costs", "Invert", "Mask", "Network", "Node",
    "Page", "Parameter", "Plan", "Precision", "Recompute", "Request", "Session", "Split", "account", "make_plan",
    "reversible", "split_frozen",
]  # fmt: skip
