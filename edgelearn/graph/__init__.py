"""Networks as data, and transformations of them."""

from .fuse import Split, split_frozen
from .network import INPUT, Network, Node, Parameter
from .rewrites import add_bidirectional, add_split, replace_head, reversible, without_softmax_and_dropout

__all__ = [
    "INPUT", "Network", "Node", "Parameter", "Split", "add_bidirectional", "add_split", "replace_head", "reversible",
    "split_frozen", "without_softmax_and_dropout",
]  # fmt: skip
