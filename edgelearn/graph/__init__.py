"""Networks as data; plans that lay out their steps; sessions that run them."""

from .network import INPUT, Network, Node, Parameter
from .plan import Plan, Request, make_plan
from .session import Session

__all__ = ["INPUT", "Network", "Node", "Parameter", "Plan", "Request", "Session", "make_plan"]
