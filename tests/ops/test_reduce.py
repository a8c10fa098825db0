import pytest

from edgelearn.ops import emit, finish

from .harness import SIZES, close


@pytest.mark.parametrize("channels", SIZES)
def test_channel_sums(bench, rng, channels):
    x = rng.standard_normal((37, channels))
    total = bench.empty((channels,))
    finish.emit_sum(bench, emit.emit_channel_sums(bench, bench.put(x), total, add=False))
    bench.run()
    close(bench.get(total), x.sum(0))
    finish.emit_sum(bench, emit.emit_channel_sums(bench, bench.put(x), total, add=True))
    bench.run()
    close(bench.get(total), 2 * x.sum(0))


@pytest.mark.parametrize("rows", (1, 63, 64, 65, 128, 129, 5000))
def test_channel_sums_over_rows(bench, rng, rows):
    x = rng.standard_normal((1, rows, 2, 3)) + 1
    total = bench.empty((3,))
    finish.emit_sum(bench, emit.emit_channel_sums(bench, bench.put(x), total, add=False))
    bench.run()
    close(bench.get(total), x.sum((0, 1, 2)))
