"""Lowering: from a network to the launches of a program.

A program has three lists: `prepare`, once a mini-batch (tensors derived from parameters: folded statistics, transposed
kernels); `micro`, for each micro-batch (forward and backward pass, gradients summed); `finish`, once a mini-batch
(gradients completed and checked, weights updated). The backward pass stops at the lowest trained layer: below it
nothing is stored, computed or allocated.
"""

from .lower import lower, with_memory
from .lowering import input_block, input_blocks

__all__ = ["input_block", "input_blocks", "lower", "with_memory"]
