"""Sums that an integer convolution computes as it writes, in programs without a backward pass."""

from __future__ import annotations

from edgelearn.graph.fuse import Stage
from edgelearn.ops import Add
from edgelearn.ops import quantized_convolution as quantized_convolution
from edgelearn.ops.quantized import activation_of, family
from edgelearn.ops.quantized_tensor import QuantizedTensor, is_integers
from edgelearn.ops.residual import Residual

from .lowering import Lowering, linear


def stages_behind(lowering: Lowering, stage: Stage, x: QuantizedTensor) -> list[Stage]:
    """The stages that the kernel of `stage`, which multiplies the integers `x`, can compute too: the next one if it
    adds another stored tensor, and the one behind that if it is an activation. Nothing else reads what is between."""
    if lowering.trains or family(linear(stage)) is not quantized_convolution:
        return []
    after = lowering.stages.index(stage) + 1
    if not quantized_convolution.adds_residuals(lowering.micro, x) or not _adds(lowering, stage, after):
        return []
    return lowering.stages[after : after + 1 + _activates(lowering, after + 1)]


def residual_of(lowering: Lowering, stage: Stage, behind: list[Stage]) -> Residual:
    """The sum that the kernel of `stage` computes for the stages `behind` it. Their ranges come into use."""
    (other,) = (name for name in behind[0].inputs if name != stage.output.name)
    summand = lowering.values[other]
    assert isinstance(summand, QuantizedTensor)
    own = lowering.quantizers.known_range("activations", stage.output.name)
    if len(behind) == 1:
        return Residual(own, summand)
    shape = summand.shape
    activation = behind[1].op and activation_of(behind[1].op.op, [shape])
    assert activation
    return Residual(own, summand, lowering.quantizers.known_range("activations", behind[0].output.name), activation)


def _adds(lowering: Lowering, stage: Stage, after: int) -> bool:
    """True if stage number `after` adds the integers of another tensor to the output of `stage`, which it alone
    reads."""
    following = lowering.stages[after] if after < len(lowering.stages) else None
    if following is None or following.op is None or not isinstance(following.op.op, Add):
        return False
    others = [name for name in following.inputs if name != stage.output.name]
    if len(following.inputs) != 2 or len(others) != 1 or not _passes(lowering, stage):
        return False
    other = lowering.values.get(others[0])
    same = isinstance(other, QuantizedTensor) and is_integers(other) and other.shape[1:] == stage.output.shape
    return same and _is_known(lowering, following)


def _activates(lowering: Lowering, after: int) -> bool:
    """True if stage number `after` is an activation that alone reads the stage before it."""
    following = lowering.stages[after] if after < len(lowering.stages) else None
    before = lowering.stages[after - 1]
    if following is None or following.op is None or following.inputs != (before.output.name,):
        return False
    is_activation = activation_of(following.op.op, [before.output.shape]) is not None
    return is_activation and _passes(lowering, before) and _is_known(lowering, following)


def _passes(lowering: Lowering, stage: Stage) -> bool:
    """True if one layer alone reads the output of `stage`, whose range is known."""
    return len(lowering.network.consumers(stage.output.name)) == 1 and _is_known(lowering, stage)


def _is_known(lowering: Lowering, stage: Stage) -> bool:
    """True if the output of `stage` is stored as integers by a range that is known before it is computed."""
    plain = {*lowering.network.outputs, *lowering.logits.values()}
    name = stage.output.name
    return name not in plain and lowering.quantizers.knows_range("activations", name)
