"""What a plan keeps for the backward pass."""

from edgelearn.graph import Plan
from edgelearn.graph.arena import lifetimes


def saved_bytes(plan: Plan, examples: int) -> int:
    """Bytes of the temporaries that the forward pass has written and the backward pass reads."""
    program = plan.program("train", examples)
    loss = next(i for i, launch in enumerate(program.micro) if launch.layer == "loss")
    return sum(life.buffer.nbytes for life in lifetimes(program.micro) if life.first < loss < life.last)
