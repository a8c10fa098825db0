import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D, LinearOp, quantised
from edgelearn.ops.formats import Format

from .integers import PLAIN, WEIGHTS


@pytest.mark.parametrize("op", (Conv2D(1, 1), Dense(1), DepthwiseConv2D(1)))
def test_every_linear_op_has_integer_kernels(op):
    family = quantised.family(op)
    assert family.emit_forward and family.emit_backward_data and family.emit_backward_weights


def test_an_op_without_integer_kernels():
    with pytest.raises(PlanError, match="LinearOp has no integer kernels"):
        quantised.family(LinearOp())


def test_formats():
    quantised.check_formats("a", PLAIN, WEIGHTS, Format(4))
    with pytest.raises(PlanError, match="'a' has gradients of 9 bits"):
        quantised.check_formats("a", PLAIN, WEIGHTS, Format(9))
    with pytest.raises(PlanError, match="weights with a zero point"):
        quantised.check_formats("a", PLAIN, PLAIN)
    with pytest.raises(PlanError, match="activations with a range a channel"):
        quantised.check_formats("a", Format(per_channel=True), WEIGHTS)
