"""Half precision beside NumPy's, bit for bit."""

import numpy as np
import pytest

from edgelearn.ops import Float16, Traits
from edgelearn.ops.formats import KernelView, RangeStatistics
from edgelearn.ops.quantize import weight_parts

from .harness import SIZES
from .integers import CLIPPED, COUNT, LEAST, MOST, transposed

F, HALF = np.float32, Float16()


@pytest.fixture(params=(False, True), ids=("", "as GPUs do"))
def bench(request, bench):
    if request.param:
        bench.traits = Traits(gpu=True, compute_units=1)
    return bench


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


def test_no_number_stays_none(bench):
    v = np.uint32([0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7FC02000]).view(F)[None]
    x, halves, floats = bench.put(v), bench.empty(v.shape, dtype="float16"), bench.empty(v.shape)
    HALF.emit_encode(bench, x, halves)
    HALF.emit_decode(bench, halves, floats)
    bench.run()
    assert np.isnan(bench.get(halves)).all() and np.isnan(bench.get(floats)).all()


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


def test_an_overflow_is_found(bench):
    for value, fails in ((65519.0, False), (-65520.0, True)):
        v = np.zeros((40, 33), F)
        v[39, 32] = value
        found = bench.empty((2, 16))
        HALF.emit_encode(bench, bench.put(v), bench.empty(v.shape, dtype="float16"), RangeStatistics(found))
        bench.run()
        assert np.isnan(bench.get(found)[:, CLIPPED]).any() == fails


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
