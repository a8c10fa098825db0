"""Masks as bits, at awkward sizes."""

import numpy as np
import pytest

from edgelearn.ops import elementwise
from edgelearn.ops.tensor import RELU, RELU6

from .harness import AS_GPUS_TOO, SIZES


@AS_GPUS_TOO
@pytest.mark.parametrize("activation", (RELU, RELU6))
@pytest.mark.parametrize("channels", SIZES)
def test_bits_say_what_passes(bench, rng, channels, activation):
    corners = np.float32([-np.inf, -1, -1e-45, 0, 1e-45, 1, 5.9999995, 6, 7, np.inf, np.nan])
    v = rng.choice(corners, (2, 5, 7, channels))
    x, y = bench.put(v), bench.empty(v.shape)
    held = elementwise.new_bits(bench, x)
    assert held.buffer.nbytes == -(-x.rows * x.blocks // 16) * 32, "a bit for each value, padding included"
    elementwise.emit_packed_bits(bench, x, held, activation)
    elementwise.emit_unpacked_bits(bench, held, y)
    bench.run()
    assert np.array_equal(bench.get(y), (v > 0) & ((v < 6) | (activation == RELU)))
