"""The tiles that other kinds of devices would get, run on the devices there are."""

import numpy as np
import pytest

from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D, Emitter, Traits, products
from edgelearn.ops.families import LOCAL

from .linear import check_linear

KINDS = [
    Traits(gpu=True, compute_units=8, vector_width=1),
    Traits(compute_units=64, vector_width=16),
    Traits(compute_units=4, vector_width=8),
]
KINDS_OF_DEVICES = pytest.mark.parametrize("traits", KINDS, ids=("gpu", "many cores", "8 lanes"))


@KINDS_OF_DEVICES
def test_right_in_groups(bench, rng, traits):
    bench.traits = traits
    check_linear(Conv2D(6, 3, groups=2), bench, rng, (5, 6, 4))


WITH_EVERY_TILE = {
    "convolution": (Conv2D(90, 3, strides=2, padding="same"), (5, 31, 17), 16),
    "convolution of the input": (Conv2D(90, 3, padding=((0, 1), (0, 1))), (4, 19, 3), 3),
    "pointwise": (Conv2D(90, 1), (5, 7, 90), 16),
    "depthwise": (DepthwiseConv2D(3, padding="same"), (5, 17, 20), 16),
    "depthwise halving": (DepthwiseConv2D(3, strides=2, padding="same"), (6, 33, 20), 16),
    "dense": (Dense(40), (70,), 16),
}


@KINDS_OF_DEVICES
@pytest.mark.parametrize("name", WITH_EVERY_TILE)
def test_right_with_candidates(bench, rng, request, traits, name):
    """At sizes that no tile divides. Each candidate compiles a program, so that each value of each size is tried, and
    all their pairs with `--all-candidates`. The pairs that are shipped are all in test_tuned.py."""
    pairs = request.config.getoption("--all-candidates")
    bench.traits = traits
    op, shape, block = WITH_EVERY_TILE[name]
    tried = check_linear(op, bench, rng, shape, block=block, choices="pairs" if pairs else "sizes")
    assert bench.turns > 3
    assert not any(bench.untried.values())
    for (kernel, *_), candidates in bench.candidates.items():
        assert not pairs or all(choice in tried[kernel] for choice in candidates)


@KINDS_OF_DEVICES
def test_tiles_keep_the_kernels_conditions(traits):
    for size in range(1, 200):
        assert 1 <= products.product_rows(traits, size) <= size, "a product tile is never taller than the matrix"
        assert size % products.panels(traits, size) == 0, "panels divide the blocks of output channels"
        assert products.row_tile(traits, size) >= 1
        assert products.depthwise_tile(traits, size) >= 1
    assert 16 % products.product_depth(traits) == 0
    if not traits.gpu:  # spilled sums cost more than half of the speed
        vectors, registers = 16 // traits.vector_width, 2 * traits.vector_width
        depths, _ = products.convolution_depths(traits, block=16, blocks=4)
        assert depths["depth"] * depths["panels"] * vectors < registers, "the sums of a tile stay in registers"
    groups, count = np.array([Emitter(traits).split_rows(rows, 3, least=5) for rows in range(1, 500)]).T
    assert ((groups - 1) * count < np.arange(1, 500)).all(), "no group is empty"
    assert (groups * count >= np.arange(1, 500)).all(), "the groups cover all rows"


def test_tiles_fit_small_gpus():
    for tile in LOCAL.tiles:
        rows, columns, item_rows, item_columns, slices = tile.values()
        team = rows * columns // (item_rows * item_columns)
        assert team * slices <= 256
        assert 4 * max(16 * slices * (rows + 4 + columns), rows * columns * (slices > 1)) <= 32 << 10
