"""A number format and its kernels in files of one's own, outside the package, trained with like any other."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Compress, Precision, Request, make_plan
from edgelearn.graph import Network
from edgelearn.ops import SGD, Conv2D, Dense, GlobalAveragePooling2D, ReLU, pack
from edgelearn.ops.formats import RangeStatistics, format_from
from edgelearn.runtime import Session
from tests.compile.quantized_reference import Twin, distance
from tests.own_files import import_own

FORMAT = '''
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgelearn.ops import NumberFormat

SOURCE = str(Path(__file__).with_suffix(".cl"))


@dataclass(frozen=True)
class Brain16(NumberFormat):
    """The upper half of a float32."""

    bits = 16

    @property
    def storage(self):
        return "uint16"

    def encode(self, v):
        words = np.asarray(v, np.float32).view(np.uint32)
        return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)

    def decode(self, encoded):
        return (np.asarray(encoded).astype(np.uint32) << 16).view(np.float32)

    def emit_encode(self, e, x, y, statistics=None):
        items, records = 64, []
        if statistics:
            items = statistics.parts.rows
            records = [statistics.parts.update if statistics.add else statistics.parts.write]
        e.launch(
            SOURCE, "encode", (items,), *([x.update] if x is y else [x.read, y.write]), x.rows * x.blocks * x.block,
            items, *records, whole=True, simulated=y.dtype == "float32", in_place=x is y,
            records=bool(records), add=bool(statistics and statistics.add),
        )

    def emit_decode(self, e, x, y):
        count = x.rows * x.blocks * x.block
        e.launch(SOURCE, "decode", (count,), x.read, y.write, count, whole=True)
'''

KERNELS = """
#include "blocked.h"

KERNEL encode(
#if !IN_PLACE
    __global const uint *x_memory, const uint x_start,
#endif
#if SIMULATED
    __global uint *y_memory, const uint y_start,
#else
    __global ushort *y_memory, const uint y_start,
#endif
    const int count, const int items
#if RECORDS
    , __global float *records, const uint records_start
#endif
) {
  const int item = get_global_id(0), share = (count + items - 1) / items;
  if (item >= items) return;
#if SIMULATED
  __global uint *y = y_memory + (size_t)y_start * 16;
#else
  __global ushort *y = y_memory + (size_t)y_start * 32;
#endif
#if IN_PLACE
  __global const uint *x = y;
#else
  __global const uint *x = x_memory + (size_t)x_start * 16;
#endif
  float least = 0, most = 0, bad = 0;
  for (int i = item * share; i < (item + 1) * share && i < count; i++) {
    const uint word = (x[i] + 0x7FFF + (x[i] >> 16 & 1)) >> 16;
    const float v = as_float(word << 16);
    least = v < least ? v : least;
    most = v > most ? v : most;
    bad += v - v;
#if SIMULATED
    y[i] = word << 16;
#else
    y[i] = word;
#endif
  }
#if RECORDS
  __global float *record = records + ((size_t)records_start + item) * 16;
#if ADD
  least = record[5] < least ? record[5] : least;
  most = record[6] > most ? record[6] : most;
  bad += record[7];
#endif
  for (int field = 0; field < 16; field++) record[field] = 0;
  record[5] = least;
  record[6] = most;
  record[7] = bad;
#endif
}

KERNEL decode(__global const ushort *x_memory, const uint x_start, __global uint *y_memory, const uint y_start,
              const int count) {
  const int i = get_global_id(0);
  if (i < count) y_memory[(size_t)y_start * 16 + i] = (uint)x_memory[(size_t)x_start * 32 + i] << 16;
}
"""
EXAMPLES, MICRO = 5, 2


@pytest.fixture(scope="module")
def fmt(tmp_path_factory):
    """A format that was written outside the package."""
    return import_own(tmp_path_factory.mktemp("own"), "bfloat", py=FORMAT, cl=KERNELS).Brain16()


def network() -> Network:
    net = Network("tiny", (6, 5, 3))
    net.add("conv", Conv2D(20, 3))
    net.add("relu", ReLU())
    net.add("more", Conv2D(17, 1))
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(4))
    return net


def step(kernels, request: Request, weights, x, labels) -> tuple[float, dict]:
    """(loss, gradients)"""
    plan = make_plan(request, kernels.context.device)
    session = Session(plan, kernels.context, kernels)
    session.load(weights)
    block = plan.storage.input.block
    parts = [(pack(x[i : i + MICRO], block), labels[i : i + MICRO]) for i in range(0, EXAMPLES, MICRO)]
    loss, _, finite = session.train(parts, EXAMPLES, 0.0, 1)
    assert finite
    gradients = session.gradients()
    session.close()
    return loss, gradients


def test_an_own_format_is_trained_with(kernels, fmt, rng):
    net, x = network(), np.float32(rng.standard_normal((EXAMPLES, 6, 5, 3)))
    weights, labels = net.initialize(0), np.int32(rng.integers(0, 4, EXAMPLES))
    simulated = Precision(weights=fmt, activations=fmt, gradients=fmt)
    request = Request(net, EXAMPLES, MICRO, SGD(0.0))
    _, unrounded = step(kernels, request, weights, x, labels)
    rounded = replace(request, precision=simulated)
    expected_loss, expected = Twin(rounded, weights).train(x, labels, 1)
    loss, gradients = step(kernels, rounded, weights, x, labels)
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    assert distance(gradients, expected) < 0.3 * distance(unrounded, expected)
    stored = replace(request, precision=replace(simulated, simulated=False))
    other, others = step(kernels, stored, weights, x, labels)
    assert other == loss and all(np.array_equal(g, others[name]) for name, g in gradients.items())


def test_activations_are_kept_in_an_own_format(kernels, fmt, rng):
    net, x = network(), np.float32(rng.standard_normal((EXAMPLES, 6, 5, 3)))
    weights, labels = net.initialize(0), np.int32(rng.integers(0, 4, EXAMPLES))
    request = Request(net, EXAMPLES, MICRO, SGD(0.0))
    loss, exact = step(kernels, request, weights, x, labels)
    kept = {"conv": Compress(fmt), "relu": Compress(fmt)}
    other, gradients = step(kernels, replace(request, activation_memory=kept), weights, x, labels)
    assert other == loss
    assert 0 < distance(gradients, exact) < 1e-2


@pytest.mark.parametrize("channels", (1, 17))
def test_an_own_format_is_encoded_and_decoded(bench, fmt, rng, channels):
    v = np.float32(rng.standard_normal((2, 3, channels)))
    x, y, z, records = bench.put(v), bench.empty(v.shape, dtype="uint16"), bench.empty(v.shape), bench.empty((3, 16))
    fmt.emit_encode(bench, x, y, RangeStatistics(records))
    fmt.emit_decode(bench, y, z)
    bench.run()
    assert np.array_equal(bench.get(y), fmt.encode(v)) and np.array_equal(bench.get(z), fmt.round(v))
    assert bench.get(records)[:, 6].max() == max(fmt.round(v).max(), 0)


def test_an_infinity_fails_the_step(kernels, fmt):
    net, x = network(), np.full((EXAMPLES, 6, 5, 3), 3.4e38, np.float32)  # the largest bfloat16 is 3.39e38
    request = Request(net, EXAMPLES, MICRO, SGD(0.0), precision=Precision(activations=fmt))
    with pytest.raises(AssertionError):
        step(kernels, request, net.initialize(0), x, np.zeros(EXAMPLES, np.int32))


def test_an_own_format_as_data(fmt):
    precision = Precision(activations=fmt)
    assert format_from(fmt.to_dict()) == fmt
    assert Precision.from_json(precision.to_json()) == precision
