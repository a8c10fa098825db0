"""Activations that the rounding of integers does: kernels/include/bounds.h."""

import numpy as np
import pytest

from edgelearn.ops import Conv2D, DepthwiseConv2D, Epilogue, Target
from edgelearn.ops.formats import QuantizedTensor
from edgelearn.ops.tensor import RELU, RELU6, Function

from .integers import PLAIN, WEIGHTS, Drawn, F, exactly, record_of

BOUNDS = {RELU: (0, np.inf), RELU6: (0, 6)}
BOUNDS |= {Function("clip", limits): limits for limits in ((-0.7, 2.3), (0.3, 5.0), (-3.0, -0.8))}
OPS = (Conv2D(32, 3, padding="same", use_bias=False), DepthwiseConv2D(3, padding="same", use_bias=False))


@pytest.mark.parametrize("function", BOUNDS, ids=str)
@pytest.mark.parametrize("op", OPS, ids=("convolution", "depthwise"))
@pytest.mark.parametrize("limits", ((-9, 11), (-0.5, 1.9), (0, 4)))
def test_bits_of_the_activation(bench, rng, op, function, limits):
    """With ranges that go beyond the bounds, and with narrower ones."""
    shape = (2, 9, 15, 32)
    weight = op.weights(shape[1:])["kernel"]
    x, kernel = Drawn(bench, rng, shape, PLAIN), Drawn(bench, rng, weight.packed_shape, WEIGHTS)
    sums = F(op.reference_forward([x.centred], {"kernel": kernel.q.reshape(weight.shape)})) * (kernel.scale * x.scale)
    scale, shift = F(6 / np.abs(sums).max() * rng.uniform(0.5, 2.0, 32)), F(rng.standard_normal(32))
    record, y_scale, zero = record_of(bench, PLAIN, *limits)
    y = QuantizedTensor(bench.empty(shape, dtype="int8"), record, PLAIN)
    epilogue = Epilogue(bench.put(scale), bench.put(shift), function)
    op.emit_linear(bench, x.ranged, kernel.ranged, Target(y), epilogue)
    bench.run()
    v = np.clip(sums * scale + shift, *F(BOUNDS[function]))
    exactly(bench.get(y.tensor, zero), PLAIN.encode(v, y_scale, zero))
