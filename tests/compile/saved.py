"""Tensors that a plan keeps for the backward pass."""

from edgelearn.compile import Kind, Plan
from edgelearn.compile.plan import stored
from edgelearn.launch import Role


def saved_bytes(plan: Plan, examples: int) -> int:
    """Bytes of the temporaries that the forward pass has written and the backward pass reads."""
    found = stored(plan.program(Kind.TRAIN, examples))
    return sum(buffer.nbytes for buffer in found if buffer.role is Role.TEMPORARY)
