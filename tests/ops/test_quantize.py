import numpy as np
import pytest

from edgelearn.ops import Format
from edgelearn.ops.constants import RangeRule
from edgelearn.ops.formats import KernelView, RangeStatistics
from edgelearn.ops.observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, Percentile, RunningMinMax
from edgelearn.ops.quantize import (
    FIELDS,
    Quantizer,
    emit_learn_range,
    emit_measured_range,
    emit_next_range,
    emit_quantize,
    emit_quantized_weights,
    record_parts,
    rule_of,
    weight_parts,
)
from edgelearn.ops.random import rounding_numbers

from .harness import AS_GPUS_TOO, SIZES, close

SEED, STEP = 2**31 + 7, 2**31 + 3


def record_of(bench, tensor) -> dict[str, float]:
    return dict(zip(FIELDS, bench.get(tensor)[0], strict=True))


def quantizer(bench, fmt, observer, **fields) -> Quantizer:
    """With a record that says `fields`, else 0."""
    record = np.zeros((1, 16), np.float32)
    for name, value in fields.items():
        record[0, FIELDS.index(name)] = value
    return Quantizer("layer/activation", fmt, observer, bench.put(record))


def expected_of(fmt: Format, v: np.ndarray, low, high, drawn=None, record=None) -> np.ndarray:
    """By the definition in float32. `record`, (16, ...), has what the device has made of the range: the same, but for
    the rounding of its divisions."""
    scale, zero = fmt.parameters(np.float32(low), np.float32(high))
    inverse = None
    if record is not None:
        assert np.allclose(record[0], scale, rtol=1e-6, atol=0) and np.abs(record[2] - zero).max() <= 1
        scale, inverse, zero = record[0], record[1], record[2].astype(np.int64)
    return fmt.decode(fmt.encode(np.float32(v), scale, zero, drawn, inverse), scale, zero)


@AS_GPUS_TOO
@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("symmetric", (False, True))
def test_static_range(bench, rng, channels, symmetric):
    """One pass: values, and by the way what they were."""
    fmt, v = Format(8, symmetric), np.float32(rng.normal(0.5, 1, (3, 5, 7, channels)))
    q = quantizer(bench, fmt, InHindsightMinMax(), next_low=-0.9, next_high=1.6)
    emit_next_range(bench, q)
    x = bench.put(v)
    found = bench.empty((record_parts(bench, x), 16))
    emit_quantize(bench, q, x, x, RangeStatistics(found, traced=True))
    emit_learn_range(bench, q, found, bench.control(), rule_of(q.observer))
    bench.run()
    w, record = bench.get(x), record_of(bench, q.record)
    expected = expected_of(fmt, v, -0.9, 1.6, record=bench.get(q.record)[0])
    assert np.array_equal(w, expected), "the same bits as in float32 by the definition"
    assert record["count"] == v.size
    exact = v / np.float64(record["scale"])
    least, most = fmt.least - record["zero"], fmt.most - record["zero"]
    assert abs(record["clipped"] - ((exact < least - 0.5) | (exact > most + 0.5)).sum()) <= 1
    assert (record["least"], record["most"]) == (min(v.min(), 0), max(v.max(), 0))
    close(
        np.array([record[name] for name in ("signal", "noise", "product", "result")]),
        np.array([(v**2).sum(), ((v - w) ** 2).sum(), (v * w).sum(), (w**2).sum()]),
    )
    assert (record["next_low"], record["next_high"]) == (record["least"], record["most"]), "the first one it has seen"


@AS_GPUS_TOO
@pytest.mark.parametrize(
    ("bits", "channels", "block"), [(2, 33, 16), (4, 33, 16), (8, 33, 16), (16, 33, 16), (8, 3, 3)]
)
def test_dynamic_range(bench, rng, bits, channels, block):
    """Pictures too have integers: three channels without padding, which end within a row of 16."""
    fmt, v = Format(bits), np.float32(rng.normal(0.5, 1, (3, 5, 7, channels)))
    q = quantizer(bench, fmt, CurrentMinMax())
    x, y = bench.put(v, block), bench.empty(v.shape, block)
    emit_measured_range(bench, q, x)
    emit_quantize(bench, q, x, y)
    bench.run()
    assert np.array_equal(bench.get(y), expected_of(fmt, v, v.min(), v.max(), record=bench.get(q.record)[0]))


@AS_GPUS_TOO
@pytest.mark.parametrize("dtype", ("float32", "int8"))
@pytest.mark.parametrize(("channels", "block"), ((3, 16), (16, 16), (40, 16), (1, 1), (3, 3), (7, 7)))
def test_stochastic_rounding(bench, rng, channels, block, dtype):
    """By seed, step, tensor, example and value alone: neither micro-batches nor blocks make a difference."""
    fmt, v = Format(4, True, "stochastic"), np.float32(rng.normal(0, 1, (5, 3, 4, channels)))
    drawn = rounding_numbers("layer/activation", v.shape, SEED, STEP, 7)
    for first, last in ((0, 5), (0, 2), (2, 5)):
        q = quantizer(bench, fmt, Fixed(-2, 2), next_low=-2, next_high=2)
        bench.training = bench.control(seed=SEED, step=STEP, seen=7 + first)
        x = bench.put(v[first:last], block)
        y = x if dtype == "float32" else bench.empty(x.shape, block, dtype)
        found = bench.empty((record_parts(bench, x), 16))
        emit_next_range(bench, q)
        emit_quantize(bench, q, x, y, RangeStatistics(found))
        bench.run()
        record = bench.get(q.record)[0]
        expected = expected_of(fmt, v, -2, 2, drawn, record)
        assert len(np.unique(expected)) > fmt.levels // 2
        assert np.array_equal(bench.get(y) if y is x else bench.get(y) * record[0], expected[first:last])
        least, most = v[first:last].min(), v[first:last].max()
        assert (bench.get(found)[:, 5].min(), bench.get(found)[:, 6].max()) == (min(least, 0), max(most, 0))


@AS_GPUS_TOO
def test_micro_batches_add_up(bench, rng):
    v = np.float32(rng.normal(0, 1, (7, 11, 32)))
    q = quantizer(bench, Format(8), InHindsightMinMax(0.75), next_low=-1, next_high=2, updates=3)
    emit_next_range(bench, q)
    found = bench.empty((record_parts(bench, bench.empty((4, 11, 32))), 16))
    for index, part in enumerate((v[:4], v[4:])):
        x = bench.put(part)
        emit_quantize(bench, q, x, x, RangeStatistics(found, add=index > 0))
    emit_learn_range(bench, q, found, bench.control(), RangeRule.RULE_BLEND)
    bench.run()
    record = record_of(bench, q.record)
    assert (record["least"], record["most"], record["count"]) == (v.min(), v.max(), v.size)
    assert record["next_low"] == pytest.approx(0.25 * v.min() - 0.75)
    assert record["next_high"] == pytest.approx(0.25 * v.max() + 1.5)
    assert record["updates"] == 4


@pytest.mark.parametrize("observer", (CurrentMinMax(), RunningMinMax(0.5), InHindsightMinMax(0.5)))
def test_sequence_of_ranges(bench, observer):
    """Three mini-batches of [0, m]: by hand, and by the estimator's own words."""
    q = quantizer(bench, Format(8), observer)
    used, high = [], 0.0
    for step, most in enumerate((8.0, 4.0, 16.0)):
        x = bench.put(np.float32([[0, most]]))
        found = bench.empty((1, 16))
        if observer.static and step:
            emit_next_range(bench, q)
        else:
            emit_measured_range(bench, q, x)
        emit_quantize(bench, q, x, x, RangeStatistics(found))
        emit_learn_range(bench, q, found, bench.control(), RangeRule.RULE_BLEND)
        bench.run()
        record = record_of(bench, q.record)
        used.append(record["high"])
        before = used[-1] if observer.static or step == 0 else high
        low, high = observer.next(0.0, before, 0.0, most, step)
        assert (record["next_low"], record["next_high"]) == (low, high)
    by_hand = {CurrentMinMax: [8, 4, 16], RunningMinMax: [8, 6, 11], InHindsightMinMax: [8, 8, 6]}
    assert used == by_hand[type(observer)]


def test_nothing_is_learnt_from_a_failed_step(bench):
    q = quantizer(bench, Format(8), InHindsightMinMax(), next_low=-1, next_high=2, updates=3)
    before = record_of(bench, q.record)
    emit_learn_range(bench, q, bench.put(np.full((2, 16), 5)), bench.control(nonfinite=1), RangeRule.RULE_BLEND)
    bench.run()
    assert record_of(bench, q.record) == before


@pytest.mark.parametrize(
    ("values", "emit"), [([1, np.nan, -1], lambda e, q, x: emit_measured_range(e, q, x)),
                         ([1, np.inf, -np.inf, 1e38], lambda e, q, x: emit_next_range(e, q))],
)  # fmt: skip
def test_what_is_not_finite_becomes_nan(bench, values, emit):
    """It isn't clipped away."""
    v = np.float32([values])
    q = quantizer(bench, Format(8), Fixed(), next_low=-1, next_high=1)
    x = bench.put(v)
    emit(bench, q, x)
    emit_quantize(bench, q, x, x)
    bench.run()
    assert np.array_equal(np.isnan(bench.get(x)), ~np.isfinite(v))


@AS_GPUS_TOO
@pytest.mark.parametrize("symmetric", (False, True))
def test_direction_sensitive_clipping(bench, rng, symmetric):
    """The best of the candidates, by float64."""
    fmt, observer = Format(4, symmetric), DSGC(smallest=1 / 100)
    v = 1e-12 * rng.standard_t(3, (3, 6, 6, 20)).astype(np.float32)  # heavy tails, and no larger than gradients
    q = quantizer(bench, fmt, observer)
    emit_measured_range(bench, q, bench.put(v))
    bench.run()
    record = record_of(bench, q.record)

    def cosine(distance: float) -> float:
        w = expected_of(fmt, v, max(v.min(), -distance), min(v.max(), distance)).astype(np.float64)
        return (v * w).sum() / np.sqrt((np.float64(v) ** 2).sum() * (w**2).sum())

    distances = np.abs(v).max() * observer.ratio ** np.arange(16)
    chosen = max(-record["low"], record["high"])
    assert np.isclose(distances, chosen, rtol=1e-5, atol=0).any() and chosen < np.abs(v).max()
    assert cosine(chosen) >= max(map(cosine, distances)) - 1e-6


@AS_GPUS_TOO
def test_percentile(bench, rng):
    v = np.float32(rng.standard_t(3, (3, 6, 6, 20)))
    observer = Percentile(percent=97)
    q = quantizer(bench, Format(8), observer)
    emit_measured_range(bench, q, bench.put(v))
    bench.run()
    chosen = record_of(bench, q.record)["high"]
    assert (np.abs(v) > chosen).mean() <= 0.03 < (np.abs(v) > chosen * observer.ratio).mean()


@AS_GPUS_TOO
@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("per_channel", (False, True))
@pytest.mark.parametrize("rounding", ("nearest", "stochastic"))
def test_weights(bench, rng, channels, per_channel, rounding):
    fmt = Format(8, symmetric=per_channel, rounding=rounding, per_channel=per_channel)
    v = np.float32(rng.normal(0, 1, (3, 67, channels)) * rng.uniform(0.1, 3, channels))
    v[1, 1, 0] = 0
    channel_ranges = bench.put(np.zeros((16, -(-channels // 16) * 16))) if per_channel else None
    q = Quantizer("layer/weights", fmt, CurrentMinMax(), bench.put(np.zeros((1, 16))), channel_ranges)
    w, y = bench.put(v), bench.empty(v.shape)
    found, control = bench.empty((weight_parts(w), 16)), bench.control(seed=SEED, step=STEP)
    emit_quantized_weights(bench, q, KernelView(w), y, RangeStatistics(found, traced=True), control)
    emit_learn_range(bench, q, found, control, RangeRule.RULE_OWN)
    bench.run()
    axes = (0, 1) if per_channel else None
    drawn = None
    if rounding == "stochastic":
        drawn = rounding_numbers("layer/weights", (1, *v.shape), SEED, STEP)[0]
    ranges = bench.get(channel_ranges)[:, :channels] if per_channel else bench.get(q.record)[0]
    assert np.array_equal(bench.get(y), expected_of(fmt, v, v.min(axes), v.max(axes), drawn, ranges))
    record = record_of(bench, q.record)
    assert (record["low"], record["high"], record["count"]) == (min(v.min(), 0), max(v.max(), 0), v.size)
    assert record["signal"] == pytest.approx((v**2).sum(), rel=1e-5)
