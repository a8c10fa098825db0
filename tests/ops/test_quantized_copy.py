"""Floats to integers and back, and sums of integers."""

import numpy as np
import pytest

from edgelearn.ops import Format, ReLU, Target, finish
from edgelearn.ops import quantize as copy
from edgelearn.ops.formats import KernelView, QuantizedTensor, RangeStatistics
from edgelearn.ops.observers import CurrentMinMax
from edgelearn.ops.quantize import Quantizer, emit_quantized_weights
from edgelearn.ops.tensor import RELU

from .harness import AS_GPUS_TOO, SIZES
from .integers import PLAIN, WEIGHTS, Drawn, F, check_found, draw, exactly, record_of, result_of, transposed

SIGNAL, NOISE, PRODUCT, RESULT = range(9, 13)


pytestmark = AS_GPUS_TOO


@pytest.mark.parametrize("channels", SIZES)
def test_to_integers(bench, rng, channels):
    v = F(rng.standard_normal((2, 3, 5, channels)))
    y, scale, zero = result_of(bench, v.shape, PLAIN, v)
    found = RangeStatistics(bench.empty((3, 16)), traced=True)
    copy.emit_to_integers(bench, bench.put(v), y, found)
    bench.run()
    q = PLAIN.encode(v, scale, zero)
    exactly(bench.get(y.tensor, zero), q)
    records = bench.get(found.parts)
    check_found(records, v, PLAIN, scale, zero)
    w = PLAIN.decode(q, scale, zero)
    for field, sums in ((SIGNAL, v * v), (NOISE, (v - w) ** 2), (PRODUCT, v * w), (RESULT, w * w)):
        assert records[:, field].sum() == pytest.approx(sums.sum(), rel=1e-4)


def test_what_is_found_is_that_of_all_micro_batches(bench, rng):
    v = F(rng.standard_normal((2, 4, 3, 5)))
    y, scale, zero = result_of(bench, v.shape[1:], PLAIN, v)
    parts = bench.empty((3, 16))
    for part in range(2):
        copy.emit_to_integers(bench, bench.put(v[part]), y, RangeStatistics(parts, add=part > 0))
        bench.run()
    check_found(bench.get(parts), v, PLAIN, scale, zero)


@pytest.mark.parametrize("channels", (1, 3, 15))
def test_unpadded_input(bench, rng, channels):
    """Once padded, its padding holds the zero point, as matrix units need it."""
    v = F(rng.standard_normal((2, 3, 5, channels)) - 0.5)
    record, scale, zero = record_of(bench, PLAIN, -2, 1)
    assert zero
    x = QuantizedTensor(bench.empty(v.shape, channels, "int8"), record, PLAIN)
    found = RangeStatistics(bench.empty((2, 16)))
    copy.emit_to_integers(bench, bench.put(v, channels), x, found)
    y = copy.emit_padded_integers(bench, x)
    bench.run()
    exactly(bench.get(x.tensor), PLAIN.encode(v, scale, zero))
    exactly(bench.get(y.tensor, zero), PLAIN.encode(v, scale, zero))
    check_found(bench.get(found.parts), v, PLAIN, scale, zero)


@pytest.mark.parametrize("channels", (1, 17, 64))
def test_to_floats(bench, rng, channels):
    x, share = Drawn(bench, rng, (2, 3, 5, channels), PLAIN), F(rng.standard_normal((2, 3, 5, channels)))
    y, sum_of_shares = bench.empty(share.shape), bench.put(share)
    copy.emit_to_floats(bench, x.ranged, Target(y))
    copy.emit_to_floats(bench, x.ranged, Target(sum_of_shares, bench.put(share), RELU, accumulate=True))
    bench.run()
    exactly(bench.get(y), x.values)
    exactly(bench.get(sum_of_shares), np.where(share > 0, x.values, F(0)) + share)


@pytest.mark.parametrize("per_channel", (False, True))
@pytest.mark.parametrize("scaled", (False, True))
@pytest.mark.parametrize("shape", ((9, 7, 33), (1, 33, 7), (4, 16, 16), (9, 7, 1), (9, 7, 64)))
def test_weights(bench, rng, shape, scaled, per_channel):
    """Transposed and scaled as they are read, or as they are, of a range of what comes of that."""
    w, scale = F(rng.standard_normal(shape)), F(rng.uniform(0.5, 2, shape[-1:]))
    fmt = Format(5, symmetric=True, per_channel=per_channel)
    expected = transposed(w * scale if scaled else w)
    for taps, values in ((shape[0], expected), (0, w * scale if scaled else w)):
        view = KernelView(bench.put(w), taps, bench.put(scale) if scaled else None)
        assert view.shape == values.shape
        y, q = bench.empty(view.shape, dtype="int8"), quantizer(bench, fmt, values.shape[-1])
        emit_quantized_weights(bench, q, view, y, None, None)
        bench.run()
        fields = bench.get(q.channels or q.record)
        of_range = fields[:3:2, : values.shape[-1]] if per_channel else fields[0, :3:2]
        exactly(bench.get(y), fmt.encode(values, *of_range))
        low, high = (values.min((0, 1)), values.max((0, 1))) if per_channel else (values.min(), values.max())
        assert of_range[0] == pytest.approx(fmt.parameters(low, high)[0])


def test_weights_rounded_at_random(bench, rng):
    w, fmt = F(rng.standard_normal((1, 63, 17))), Format(4, symmetric=True, rounding="stochastic")
    control = bench.control(seed=5, step=3)
    y, q = bench.empty(w.shape, dtype="int8"), quantizer(bench, fmt)
    emit_quantized_weights(bench, q, KernelView(bench.put(w)), y, None, control)
    bench.run()
    scale, zero = bench.get(q.record)[0, :3:2]
    exactly(bench.get(y), fmt.encode(w, scale, zero, draw(w.shape, "w", 5, 3)))


def quantizer(bench, fmt: Format, channels: int = 0) -> Quantizer:
    per_channel = bench.empty((16, 64)) if fmt.per_channel else None
    return Quantizer("w", fmt, CurrentMinMax(), bench.empty((1, 16)), per_channel)


@pytest.mark.parametrize("shape", ((9, 7, 33), (1, 33, 7), (4, 16, 16)))
def test_transposed(bench, rng, shape):
    kernel = Drawn(bench, rng, shape, WEIGHTS)
    found = copy.emit_transposed_integers(bench, kernel.ranged, shape[0])
    bench.emit_jobs()
    bench.run()
    exactly(bench.get(found.tensor), transposed(kernel.q))
    assert found.record is kernel.ranged.record


@pytest.mark.parametrize("channels", (3, 33))
@pytest.mark.parametrize("added", (False, True), ids=("activation", "sum"))
def test_sums_and_activations_of_integers(bench, rng, channels, added):
    """The same integers as from floats, and the same statistics."""
    inputs = [Drawn(bench, rng, (2, 3, 5, channels), PLAIN) for _ in range(1 + added)]
    v = np.clip(sum((x.values for x in inputs), F(0)), F(0), F(1.5))
    y, scale, zero = result_of(bench, v.shape, PLAIN, v)
    found, floats = RangeStatistics(bench.empty((3, 16))), bench.empty(v.shape)
    activation = ReLU(1.5).epilogue
    copy.emit_integer_sum(bench, [x.ranged for x in inputs], Target(y, statistics=found), activation)
    copy.emit_integer_sum(bench, [x.ranged for x in inputs], Target(floats), activation)
    bench.run()
    exactly(bench.get(floats), v)
    exactly(bench.get(y.tensor, zero), PLAIN.encode(v, scale, zero))
    check_found(bench.get(found.parts), v, PLAIN, scale, zero)


@pytest.mark.parametrize("rows", (1, 65, 5000))
def test_channel_sums(bench, rng, rows):
    x = Drawn(bench, rng, (rows, 17), WEIGHTS)
    total = bench.empty((17,))
    for turn in (1, 2):
        finish.emit_sum(bench, copy.emit_integer_channel_sums(bench, x.ranged, total, add=turn > 1))
        bench.run()
        assert bench.get(total) == pytest.approx(turn * x.values.sum(0), rel=1e-5, abs=1e-3)
