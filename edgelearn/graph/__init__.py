"""Networks as data, and transformations of them."""

from .network import INPUT, Network, Node, Parameter
from .reversible import reversible
from .split import Split, split_frozen

__all__ = ["INPUT", "Network", "Node", "Parameter", "Split", "reversible", "split_frozen"]
