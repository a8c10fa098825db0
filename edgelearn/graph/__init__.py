"""Networks as data, and transformations of them."""

from .add_split import add_split
from .head import replace_head
from .logits import without_softmax_and_dropout
from .network import INPUT, Network, Node, Parameter
from .reversible import reversible
from .split import Split, split_frozen

__all__ = [
    "INPUT", "Network", "Node", "Parameter", "Split", "add_split", "replace_head", "reversible", "split_frozen",
    "without_softmax_and_dropout",
]  # fmt: skip
