import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelearn.errors import PlanError
from edgelearn.ops import Float16, Format
from edgelearn.ops.formats import LEAST_SCALE, StoredType, format_from
from edgelearn.runtime import kernels

formats = st.builds(Format, bits=st.integers(2, 16), symmetric=st.booleans())
reals = st.floats(-1e6, 1e6)


def test_stored_types_have_the_numbers_of_the_kernels():
    text = (kernels.kernels_folder() / "include" / "values.h").read_text()
    assert all(f"#define {storage.name} {storage.value}\n" in text for storage in StoredType)
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


@pytest.mark.parametrize("bits", (1, 17, 8.0, True))
def test_impossible_bits(bits):
    with pytest.raises(PlanError):
        Format(bits)


def test_impossible_roundings():
    with pytest.raises(PlanError, match="up"):
        Format(8, rounding="up")
    with pytest.raises(PlanError, match="uniform"):
        Format(8, rounding="stochastic").encode(np.ones(1), np.float64(1), 0)


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
