"""Products with frozen weights in block formats, against the decoded ones in float64."""

import itertools

import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import FrozenDense, FrozenEmbedding, Target, block_formats
from edgelearn.ops.tensor import RELU6

from .harness import AS_GPUS_TOO, close

FORMATS = pytest.mark.parametrize("name", block_formats.BLOCK_BYTES)


def drawn_blocks(rng, name: str, rows: int, columns: int) -> np.ndarray:
    """Weights of which some blocks have scales below the least normal half, or are 0."""
    matrix = rng.standard_normal((rows, columns // 32, 32)) * 10.0 ** rng.integers(-7, 1, (rows, columns // 32, 1))
    matrix[0, 0] = 0
    return block_formats.encode(matrix.reshape(rows, columns), name)


@FORMATS
def test_formats_round_to_the_nearest_value(rng, name):
    matrix = rng.standard_normal((5, 96)).astype(np.float32)
    step = {"F16": 2**-11, "Q8_0": 1 / 127, "Q4_0": 1 / 8, "Q4_1": 1 / 15}[name]
    words = block_formats.encode(matrix, name)
    assert np.abs(block_formats.decode(words, name) - matrix).max() <= step * np.abs(matrix).max() * 1.01
    gguf = pytest.importorskip("gguf", reason="compared with the package gguf where it is installed")
    np.testing.assert_array_equal(gguf.quants.dequantize(words, gguf.GGMLQuantizationType[name]),
                                  block_formats.decode(words, name))  # fmt: skip


FEW_ROWS = itertools.cycle(((1, 64, 33), (3, 32, 1)))
SHAPES = [  # each with a way in which the gradient is written: added, masked
    (name, *case) for name in block_formats.BLOCK_BYTES
    for case in ((next(FEW_ROWS), False, False), ((37, 96, 50), True, False), ((70, 32, 17), True, True))
]  # fmt: skip


@AS_GPUS_TOO
@pytest.mark.parametrize(("name", "shape", "added", "masked"), SHAPES)
def test_dense(bench, rng, name, shape, added, masked):
    rows, columns, units = shape
    op, words = FrozenDense(units, name), drawn_blocks(rng, name, units, columns)
    x, dy = rng.standard_normal((1, rows, columns)), rng.standard_normal((1, rows, units))
    w = block_formats.decode(words, name).astype(np.float64)
    share = rng.standard_normal(x.shape)
    tx, tw, ty = bench.put(x), bench.put(words, words.shape[1], "uint8"), bench.empty(dy.shape)
    tdx = bench.put(share) if added else bench.empty(x.shape)
    op.emit_forward(bench, [tx, tw], ty)
    bench.run()
    close(bench.get(ty), op.reference_forward([x], {"rows": words}), 1e-6)
    np.testing.assert_allclose(op.reference_forward([x], {"rows": words}), x @ w.T)
    ((dx,), _) = op.reference_backward([x], {"rows": words}, dy)
    np.testing.assert_allclose(dx, dy @ w)
    op.emit_backward(
        bench, [tx, tw], ty, bench.put(dy), [Target(tdx, *((tx, RELU6) if masked else ()), accumulate=added), None]
    )
    bench.run()
    close(bench.get(tdx), share * added + dx * ((x > 0) & (x < 6) if masked else 1), 1e-6)


@AS_GPUS_TOO
@FORMATS
def test_embedding(bench, rng, name):
    op, words = FrozenEmbedding(9, 64, name), drawn_blocks(rng, name, 9, 64)
    numbers = rng.integers(-9, 11, (3, 20)).astype(np.float64)
    ty = bench.empty((3, 20, 64))
    op.emit_forward(bench, [bench.put(numbers), bench.put(words, words.shape[1], "uint8")], ty)
    bench.run()
    close(bench.get(ty), op.reference_forward([numbers], {"rows": words}), 0)


def test_refusals():
    with pytest.raises(ShapeError, match="multiple of 32"):
        FrozenDense(3, "Q4_0").output_shape((5, 33))
    with pytest.raises(ShapeError, match="Q5_K"):
        FrozenEmbedding(3, 64, "Q5_K").output_shape((5,))
