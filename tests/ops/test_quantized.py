import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D, LinearOp
from edgelearn.ops import quantized as quantized


@pytest.mark.parametrize("op", (Conv2D(1, 1), Dense(1), DepthwiseConv2D(1)))
def test_every_linear_op_has_integer_kernels(op):
    family = quantized.family(op)
    assert family.emit_forward and family.emit_backward_data and family.emit_backward_weights


def test_an_op_without_integer_kernels():
    for op in (LinearOp(), Conv2D(4, 1, groups=2)):
        with pytest.raises(PlanError, match=type(op).__name__):
            quantized.family(op)
