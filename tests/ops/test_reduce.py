import numpy as np
import pytest

from edgelearn.ops import pack, reduce

from .harness import SIZES, close


@pytest.mark.parametrize("channels", SIZES)
def test_channel_sums(bench, rng, channels):
    x = rng.standard_normal((37, channels))
    total = bench.empty((channels,))
    reduce.emit_channel_sums(bench, bench.put(x), total, add=False)
    bench.run()
    close(bench.get(total), x.sum(0))
    reduce.emit_channel_sums(bench, bench.put(x), total, add=True)
    bench.run()
    close(bench.get(total), 2 * x.sum(0))


@pytest.mark.parametrize("rows", (1, 63, 64, 65, 128, 129, 5000))
def test_channel_sums_over_rows(bench, rng, rows):
    x = rng.standard_normal((1, rows, 2, 3)) + 1
    total = bench.empty((3,))
    reduce.emit_channel_sums(bench, bench.put(x), total, add=False)
    bench.run()
    close(bench.get(total), x.sum((0, 1, 2)))


@pytest.mark.parametrize("groups", (1, 2, 7))
@pytest.mark.parametrize("shape", [(1,), (17,), (5, 33), (40, 70), (900, 20)])
def test_sum_partials(bench, rng, groups, shape):
    parts, before = rng.standard_normal((groups, *shape)), rng.standard_normal(shape)
    total = bench.put(before)
    partials = reduce.partial_sums(bench, groups, total)
    bench._allocate(partials.buffer)
    words = np.concatenate([pack(part).ravel() for part in parts])
    bench.context.write(bench.memory[partials.buffer].handle, words)
    reduce.emit_sum_partials(bench, partials, total, groups, add=True)
    bench.run()
    close(bench.get(total), before + parts.sum(0))
    reduce.emit_sum_partials(bench, partials, total, groups, add=False)
    bench.run()
    close(bench.get(total), parts.sum(0))
