"""Sums that an integer convolution computes as it writes."""

import numpy as np
import pytest

from edgelearn.ops import Conv2D, Epilogue, Target, Traits
from edgelearn.ops import quantize as copy
from edgelearn.ops.formats import QuantizedTensor
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import Quantizer, Residual
from edgelearn.ops.quantized import adds_residuals
from edgelearn.ops.tensor import LINEAR, RELU

from .integers import PLAIN, WEIGHTS, Drawn, F, exactly, record_of

OP, SHAPE = Conv2D(20, 3, padding="same"), (2, 9, 15, 20)
RANGES = OWN, SUM, END = (-900, 700), (-800, 900), (-100, 600)  # leave out some of the values


class Place:
    """Room for integers of SHAPE in a range."""

    def __init__(self, bench, limits: tuple[int, int]) -> None:
        record, self.scale, self.zero = record_of(bench, PLAIN, *limits)
        self.quantizer = Quantizer("", PLAIN, CurrentMinMax(), record)
        self.ranged = QuantizedTensor(bench.empty(SHAPE, dtype="int8"), record, PLAIN)

    def encoded(self, v: np.ndarray) -> np.ndarray:
        return PLAIN.encode(v, self.scale, self.zero)

    def rounded(self, v: np.ndarray) -> np.ndarray:
        return PLAIN.decode(self.encoded(v), self.scale, self.zero)


@pytest.mark.parametrize("activated", (False, True))
@pytest.mark.parametrize("gpu", (False, True), ids=("", "as GPUs do"))
def test_sums_have_the_bits_of_launches_of_their_own(bench, rng, activated, gpu):
    """And those of NumPy's int64 and float32."""
    if gpu:
        bench.traits = Traits(gpu=True, compute_units=1)
    weight = OP.weights(SHAPE[1:])["kernel"]
    x, kernel = Drawn(bench, rng, SHAPE, PLAIN), Drawn(bench, rng, weight.packed_shape, WEIGHTS)
    if not adds_residuals(bench, x.ranged):
        pytest.skip("the kernels of matrix units add no residuals")
    other, shift = Drawn(bench, rng, SHAPE, PLAIN), F(rng.standard_normal(20))
    epilogue = Epilogue(None, bench.put(shift))
    own, added, end, fused = (Place(bench, limits) for limits in (*RANGES, END))
    OP.emit_linear(bench, x.ranged, kernel.ranged, Target(own.ranged), epilogue)
    operands = [own.ranged, other.ranged]
    copy.emit_integer_sum(bench, operands, Target((added if activated else end).ranged), LINEAR)
    if activated:
        copy.emit_integer_sum(bench, [added.ranged], Target(end.ranged), RELU)
    residual = Residual(own.quantizer, other.ranged, *((added.quantizer, RELU) if activated else ()))
    OP.emit_linear(bench, x.ranged, kernel.ranged, Target(fused.ranged), epilogue, residual)
    bench.run()
    found = bench.get(fused.ranged.tensor, fused.zero)
    exactly(found, bench.get(end.ranged.tensor, end.zero))

    sums = OP.reference_forward([x.centred], {"kernel": kernel.q.reshape(weight.shape), "bias": np.int64(0)})
    v = own.rounded(F(sums) * (kernel.scale * x.scale) + shift) + other.values
    exactly(found, end.encoded(np.maximum(added.rounded(v), 0) if activated else v))
