"""Networks as data, and transformations of them."""

from .network import INPUT, Network, Node, Parameter
from .rewrites import (
    Split,
    add_bidirectional,
    add_split,
    replace_head,
    reversible,
    split_frozen,
    without_softmax_and_dropout,
)

__all__ = [
    "INPUT", "Network", "Node", "Parameter", "Split", "add_bidirectional", "add_split", "replace_head", "reversible",
    "split_frozen", "without_softmax_and_dropout",
]  # fmt: skip
