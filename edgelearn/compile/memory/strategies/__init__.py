"""Strategies: how an activation that the backward pass needs gets there.

A new strategy is a subclass of `Encoding` in a file of its own: what it emits decides what it stores and what it costs.
"""

from .base import Encoding, Invert, Recompute, Store, Strategy
from .compress import Compress
from .mask import Mask
from .offload import Offload

__all__ = ["Compress", "Encoding", "Invert", "Mask", "Offload", "Recompute", "Store", "Strategy"]
