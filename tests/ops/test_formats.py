"""Number formats, halves, and range observers."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelearn.errors import PlanError
from edgelearn.ops import Float16, Format
from edgelearn.ops.constants import RangeField
from edgelearn.ops.formats import LEAST_SCALE, KernelView, RangeStatistics, StoredType, format_from
from edgelearn.ops.observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, Observer, Percentile, RunningMinMax
from edgelearn.ops.quantize import NEXT, first_record, moved, weight_parts

from .harness import AS_GPUS_TOO, SIZES
from .integers import CLIPPED, COUNT, LEAST, MOST, transposed

formats = st.builds(Format, bits=st.integers(2, 16), symmetric=st.booleans())
reals = st.floats(-1e6, 1e6)


def test_stored_types():
    assert [StoredType.of(dtype) for dtype in ("float32", "float16", "int8", "bfloat16")] == list(StoredType)


@given(formats, reals, reals, st.lists(reals, min_size=1, max_size=20))
def test_values_of_the_range_come_back_to_half_a_step(fmt, a, b, values):
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    scale, zero = fmt.parameters(np.float64(low), np.float64(high))
    v = np.clip(values, low, high)
    q = fmt.encode(v, scale, zero)
    assert q.dtype == np.int64 and (q >= fmt.least).all() and (q <= fmt.most).all()
    slack = 0.5 if fmt.symmetric else 1.0  # a rounded zero point moves the range by up to half a step
    assert (np.abs(fmt.decode(q, scale, zero) - v) <= (slack + 1e-9) * scale).all()
    assert fmt.encode(np.zeros(1), scale, zero) == zero and fmt.least <= zero <= fmt.most
    assert not fmt.symmetric or zero == 0


@given(formats, st.integers(-40_000, 40_000), st.floats(1e-6, 1e6))
def test_integers_come_back_as_they_are(fmt, q, scale):
    q = np.clip(q, fmt.least, fmt.most)
    assert fmt.encode(fmt.decode(q, np.float64(scale), 0), np.float64(scale), 0) == q


@pytest.mark.parametrize("bits", range(2, 17))
def test_counts_by_hand(bits):
    plain, symmetric = Format(bits), Format(bits, symmetric=True)
    assert (plain.least, plain.most, plain.levels) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 2**bits)
    assert (symmetric.least, symmetric.most, symmetric.levels) == (-plain.most, plain.most, 2**bits - 1)
    assert plain.storage == ("int8" if bits <= 8 else "int16")
    scale, zero = plain.parameters(np.float64(0), np.float64(2**bits - 1))
    assert (scale, zero) == (1, plain.least)


def test_parameters_by_hand():
    scale, zero = Format(8).parameters(np.float64(-1.0), np.float64(1.55))
    assert scale == pytest.approx(0.01) and zero == 100 - 128
    scale, zero = Format(8, symmetric=True).parameters(np.float64(-1.0), np.float64(2.54))
    assert scale == pytest.approx(0.02) and zero == 0
    assert Format(8).parameters(np.float64(0), np.float64(0))[0] == LEAST_SCALE, "a tensor of zeros"
    scale, zero = Format(8).parameters(np.float64([-1, 1]), np.float64([1, 2]))
    assert scale.tolist() == [2 / 255, 2 / 255], "a range is widened to contain 0"


def test_halves_round_to_even():
    t = np.float64([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert Format(8).encode(t, np.float64(1), 0).tolist() == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize("bits", (2, 4, 8, 16))
def test_stochastic_rounding_is_unbiased(bits):
    fmt, rng = Format(bits, rounding="stochastic"), np.random.default_rng(0)
    for fraction in (0.0, 0.25, 0.9):
        v = np.full(100_000, fraction - 1)
        q = fmt.encode(v, np.float64(1), 0, rng.random(v.size))
        assert set(q.tolist()) <= {-1, 0}
        assert abs(q.mean() - v[0]) <= 5 * (fraction * (1 - fraction) / v.size) ** 0.5


def test_half_precision():
    v = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25, 65519, 65520, -1e9])
    expected = [1, 1 + 2**-9, 0, 2**-23, 65504, np.inf, -np.inf]
    found = Float16().round(v)
    assert found.dtype == v.dtype and found.tolist() == expected
    assert Float16().round(np.float64(v)).tolist() == expected


@pytest.mark.parametrize("fmt", (Float16(), Format(4, symmetric=True, rounding="stochastic")))
def test_formats_as_data(fmt):
    assert format_from(fmt.to_dict()) == fmt
    assert fmt.with_bits(6) == (fmt if fmt == Float16() else Format(6, symmetric=True, rounding="stochastic"))


F, HALF = np.float32, Float16()


def every_half_and_its_neighbours() -> np.ndarray:
    """All finite and infinite halves, what lies half-way between them, and the floats just beside both: subnormals,
    ties and overflow among them."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(F)
    halves[-1] = 65536.0
    ties = (halves[1:] + halves[:-1]) / 2
    v = np.concatenate([halves, ties])
    v = np.concatenate([v, np.nextafter(v, F(np.inf)), np.nextafter(v, F(-np.inf)), F([1e-45, 3e38, np.inf])])
    return np.concatenate([v, -v[1:]])  # the workbench makes -0 a 0


def rounded(v: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return v.astype(np.float16)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    kind = f"u{expected.itemsize}"
    return np.array_equal(found.view(kind), expected.view(kind))


@AS_GPUS_TOO
def test_every_half(bench):
    v = every_half_and_its_neighbours()
    v = np.resize(v, (-(-v.size // 32), 32))
    x, halves, floats = bench.put(v), bench.empty(v.shape, dtype="float16"), bench.empty(v.shape)
    HALF.emit_encode(bench, x, halves)
    HALF.emit_decode(bench, halves, floats)
    HALF.emit_encode(bench, x, x)
    bench.run()
    assert same_bits(bench.get(halves), rounded(v))
    assert same_bits(bench.get(floats), rounded(v).astype(F))
    assert same_bits(bench.get(x), rounded(v).astype(F))


@AS_GPUS_TOO
def test_no_number_stays_none(bench):
    v = np.uint32([0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7FC02000]).view(F)[None]
    x, halves, floats = bench.put(v), bench.empty(v.shape, dtype="float16"), bench.empty(v.shape)
    HALF.emit_encode(bench, x, halves)
    HALF.emit_decode(bench, halves, floats)
    bench.run()
    assert np.isnan(bench.get(halves)).all() and np.isnan(bench.get(floats)).all()


@AS_GPUS_TOO
@pytest.mark.parametrize("channels", SIZES)
def test_findings_are_of_the_result(bench, rng, channels):
    v = F(rng.normal(0, 1, (2, 3, 5, channels)))
    for block, dtype in ((16, "float32"), (16, "float16"), (min(channels, 15), "float32")):
        if channels > block != 16:
            continue
        x = bench.put(v, block)
        y = bench.empty(v.shape, block, dtype)
        found = bench.empty((3, 16))
        for add in (False, True):
            HALF.emit_encode(bench, x, y, RangeStatistics(found, add=add))
        bench.run()
        expected = rounded(v)
        assert same_bits(bench.get(y), expected.astype(dtype))
        records = bench.get(found)
        assert (records[:, LEAST].min(), records[:, MOST].max()) == (min(expected.min(), 0), max(expected.max(), 0))
        assert records[:, COUNT].sum() == 2 * v.size and records[:, CLIPPED].sum() == 0


@AS_GPUS_TOO
def test_an_overflow_is_found(bench):
    for value, fails in ((65519.0, False), (-65520.0, True)):
        v = np.zeros((40, 33), F)
        v[39, 32] = value
        found = bench.empty((2, 16))
        HALF.emit_encode(bench, bench.put(v), bench.empty(v.shape, dtype="float16"), RangeStatistics(found))
        bench.run()
        assert np.isnan(bench.get(found)[:, CLIPPED]).any() == fails


@AS_GPUS_TOO
@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("scaled", (False, True))
@pytest.mark.parametrize("shape", ((9, 7, 33), (1, 300, 17)))
def test_weights(bench, rng, shape, scaled, dtype):
    w, scale = F(rng.standard_normal(shape)), F(rng.uniform(0.5, 2, shape[-1:]))
    values = w * scale if scaled else w
    for taps, expected in ((0, values), (shape[0], transposed(values))):
        y = bench.empty(expected.shape, dtype=dtype)
        found = bench.empty((weight_parts(y), 16))
        view = KernelView(bench.put(w), taps, bench.put(scale) if scaled else None)
        HALF.emit_encode_weights(bench, view, y, RangeStatistics(found))
        bench.run()
        assert same_bits(bench.get(y), np.ascontiguousarray(rounded(expected).astype(dtype)))
        assert bench.get(found)[:, COUNT].sum() == w.size and bench.get(found)[:, MOST].max() == rounded(values).max()


@dataclass(frozen=True)
class Wider(Observer):
    margin: float = 1.5

    def next(self, low, high, least, most, updates):
        return least * self.margin, most * self.margin


EVERY = (
    CurrentMinMax(), RunningMinMax(0.5), InHindsightMinMax(0.8), Fixed(-2.0, 3.0), DSGC(50, 0.1),
    Percentile(percent=99.0), Wider(2.0),
)  # fmt: skip


@pytest.mark.parametrize("observer", EVERY)
def test_dictionaries_come_back(observer):
    assert Observer.from_dict(observer.to_dict()) == observer


@pytest.mark.parametrize("given", [(1, 2), (-1, float("nan")), (0, 1e300), (0, 1, 2), (1, "x"), None, 3.0])
def test_ranges_of_ones_own_that_are_none(given):
    class Odd(Observer):
        def next(self, *known):
            return given

    record = first_record(Odd())
    record[RangeField.UPDATES] = 1
    try:
        with pytest.raises(PlanError, match="Odd"):
            moved(Odd(), record)
    finally:
        del Observer.registry["Odd"]


def test_a_range_of_ones_own():
    record = first_record(Wider(2.0))
    record[[3, 4, 5, 6, RangeField.UPDATES]] = -9, 9, -1, 3, 1
    after = moved(Wider(2.0), record)
    assert after[NEXT].tolist() == [-2, 6]
    assert np.array_equal(np.delete(after, NEXT), np.delete(record, NEXT))


def test_momentum_by_hand():
    """Equation 18 of LUQ, from the first mini-batch's own range."""
    observer, low, high = InHindsightMinMax(0.9), 0.0, 0.0
    for updates, most in enumerate((10.0, 20.0)):
        low, high = observer.next(low, high, -1.0, most, updates)
    assert (low, high) == (-1, pytest.approx(11))


def test_searches_are_due_in_time():
    assert [step for step in range(1, 10) if DSGC(every=4).is_due(step)] == [1, 5, 9]
    assert not InHindsightMinMax().is_due(1), "only the first step, and the session knows which that is"
    assert DSGC(smallest=1 / 64).ratio ** 15 == pytest.approx(1 / 64)
