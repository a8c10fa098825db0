import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import Embedding, Take, Target, finish

from .harness import SIZES, close


def check(op, bench, rng, shapes, numbers, table=None):
    """Forward and backward to each input, and to the table."""
    x = [rng.standard_normal((len(numbers), *shape)) for shape in shapes]
    weights = {} if table is None else {"embeddings": rng.standard_normal(table)}
    inputs, held = [*x, numbers], [*x, numbers, *weights.values()]
    y = op.reference_forward(inputs, weights)
    tensors, ty = [bench.put(array) for array in held], bench.empty(y.shape)
    op.emit_forward(bench, tensors, ty)
    bench.run()
    there = ~np.isnan(y)
    found = bench.get(ty)
    close(np.where(there, found, 0), np.where(there, y, 0))
    assert np.isnan(found[~there]).all()
    dy = rng.standard_normal(y.shape)
    dxs, dws = op.reference_backward(inputs, weights, dy)
    targets = [bench.empty(array.shape) for array in held]
    for accumulate in (False, True):
        given = [Target(t, accumulate=accumulate and n == len(held) - 1) for n, t in enumerate(targets)]
        sums = op.emit_backward(bench, tensors, ty, bench.put(dy), given)
        for total in sums or ():
            finish.emit_sum(bench, total)
        bench.run()
    for n, (target, expected) in enumerate(zip(targets, [*dxs, *dws.values()], strict=True)):
        close(bench.get(target), expected * (2 if n == len(held) - 1 else 1))
    op.emit_backward(bench, tensors, ty, bench.put(dy), [None, Target(targets[1])] if len(targets) > 1 else [])


@pytest.mark.parametrize("channels", SIZES)
def test_take(bench, rng, channels):
    for shape in ((5, channels), (4, 3, channels)):
        check(Take(), bench, rng, [shape], rng.integers(-shape[0], shape[0], (3, 7)).astype(float))


def test_numbers_are_rounded_and_what_is_not_there_is_nan(bench, rng):
    numbers = np.array([[0.4, -0.6, 1.6, 3, -4, np.nan, np.inf, -2.6, 2.4, 2.6]])
    check(Take(), bench, rng, [(3, 2)], numbers)
    assert np.isnan(Take().reference_forward([np.ones((1, 3, 2)), numbers], {})[0, :, 0]).tolist() == [
        False, False, False, True, True, True, True, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize("channels", SIZES)
def test_embedding(bench, rng, channels):
    check(Embedding(9, channels), bench, rng, [], rng.integers(-9, 11, (5, 40)).astype(float), (9, channels))


def test_an_embedding_of_many_numbers(bench, rng):
    check(Embedding(3, 5), bench, rng, [], rng.integers(0, 3, (40, 50)).astype(float), (3, 5))


@pytest.mark.parametrize(
    ("op", "shapes"),
    [(Take(), [(5,), (2,)]), (Take(), [(5, 2), (2, 1)]), (Take(), [(5, 2)]), (Embedding(3, 2), [(2, 2)])],
)
def test_shapes_that_do_not_fit(op, shapes):
    with pytest.raises(ShapeError, match=type(op).__name__):
        op.output_shape(*shapes)
    with pytest.raises(ShapeError):
        Embedding(0, 3)
