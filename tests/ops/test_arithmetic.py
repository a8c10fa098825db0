import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import (
    Add,
    Bias,
    BroadcastTo,
    Constant,
    Divide,
    Greater,
    Less,
    Maximum,
    Minimum,
    Multiply,
    PReLU,
    Scale,
    Subtract,
    Target,
    Traits,
    Where,
    finish,
)

from .harness import close
from .plain import check_plain

OPS = (Divide(), Greater(), Less(), Maximum(), Minimum(), Multiply(), Subtract())
CHANNELS = (1, 3, 17, 100)
SHAPES = {
    "the same": lambda c: ((3, 5, c), (3, 5, c)),
    "a gate": lambda c: ((7, 6, c), (1, 1, c)),
    "a gate of another rank": lambda c: ((7, 6, c), (c,)),
    "one channel": lambda c: ((3, 5, c), (3, 5, 1)),
    "one number": lambda c: ((1, 1, 1), (3, 5, c)),
    "rows and columns": lambda c: ((1, 5, c), (3, 1, c)),
    "outer": lambda c: ((4, 1, 1), (1, 3, c)),
    "rank 2": lambda c: ((6, c), (1, c)),
    "rank 4": lambda c: ((2, 3, 4, c), (1, 3, 4, c)),
}


GPU = Traits(gpu=True, compute_units=1)


@pytest.mark.parametrize("shapes", SHAPES)
def test_multiply(bench, rng, shapes):
    for channels in CHANNELS:
        check_plain(Multiply(), bench, rng, *SHAPES[shapes](channels), n=2)


@pytest.mark.parametrize("shapes", ["one channel", "outer", "rank 4"])
def test_multiply_as_gpus_do(bench, rng, shapes):
    bench.traits = GPU
    check_plain(Multiply(), bench, rng, *SHAPES[shapes](17), n=2)


@pytest.mark.parametrize("shapes", ["a gate of another rank", "one channel", "outer", "rank 2"])
def test_add_repeats_as_others_do(bench, rng, shapes):
    for channels in (17, 1):
        check_plain(Add(), bench, rng, *SHAPES[shapes](channels), n=2)


@pytest.mark.parametrize("op", [op for op in OPS if op != Multiply()], ids=str)
def test_others(bench, rng, op):
    for a, b in (SHAPES["the same"](17), SHAPES["one channel"](17), SHAPES["a gate"](17)[::-1]):
        check_plain(op, bench, rng, a, b, low=1 if op == Divide() else -3)


def test_ties_and_nans(bench):
    a, b = np.array([[1.0, 2, np.nan, 1, np.nan]]), np.array([[1.0, 3, 1, np.nan, np.nan]])
    ta, tb, ty, tda, tdb = bench.put(a), bench.put(b), *(bench.empty(a.shape) for _ in range(3))
    for op, expected, first in ((Maximum(), [1, 3], [1, 0]), (Minimum(), [1, 2], [1, 1])):
        op.emit_forward(bench, [ta, tb], ty)
        op.emit_backward(bench, [ta, tb], ty, bench.put(np.ones_like(a)), [Target(tda), Target(tdb)])
        bench.run()
        assert bench.get(ty)[0, :2].tolist() == expected and np.isnan(bench.get(ty)[0, 2:]).all()
        assert bench.get(tda)[0, :2].tolist() == first
        assert (bench.get(tda) + bench.get(tdb))[0, :2].tolist() == [1, 1]


@pytest.mark.parametrize("channels", CHANNELS)
def test_where(bench, rng, channels):
    """Whole numbers, of which some are 0."""
    whole, row, one = (3, 5, channels), (1, 1, channels), (3, 5, 1)
    for shapes in ((whole,) * 3, (one, whole, whole), (row, whole, one), ((channels,), one, row), (whole, (1,), (1,))):
        check_plain(Where(), bench, rng, *shapes, whole=True, low=-2)


def test_what_is_not_chosen_has_no_part(bench):
    condition, a, b = np.array([[1.0, 0, np.nan]]), np.array([[2.0, np.nan, 3]]), np.array([[np.inf, 5, np.nan]])
    tensors, ty, targets = [bench.put(x) for x in (condition, a, b)], bench.empty((1, 3)), [bench.empty((1, 3))] * 3
    Where().emit_forward(bench, tensors, ty)
    bench.run()
    assert bench.get(ty).tolist() == [[2, 5, 3]]
    for place, expected in enumerate(([0, 0, 0], [1, 0, 1], [0, 1, 0])):
        given = [Target(targets[0]) if n == place else None for n in range(3)]
        Where().emit_backward(bench, tensors, ty, bench.put(np.ones((1, 3))), given)
        bench.run()
        assert bench.get(targets[0]).tolist() == [expected]


@pytest.mark.parametrize("channels", CHANNELS)
def test_broadcast_to(bench, rng, channels):
    for shape in ((1, 1, channels), (channels,), (3, 1, 1), (1, 5, channels), (1,), (3, 5, channels)):
        check_plain(BroadcastTo((3, 5, channels)), bench, rng, shape)


@pytest.mark.parametrize("shape", [(1,), (17,), (5, 3), (3, 5, 33)])
def test_constant(bench, rng, shape):
    x, w, dy = rng.standard_normal((3, 4, 2)), rng.standard_normal(shape), rng.standard_normal((3, *shape))
    tensors, ty, tdx, tdw = (
        [bench.put(x), bench.put(w)],
        bench.empty(dy.shape),
        bench.empty(x.shape),
        bench.empty(shape),
    )
    op = Constant(shape)
    op.emit_forward(bench, tensors, ty)
    bench.run()
    close(bench.get(ty), op.reference_forward([x], {"value": w}))
    (_, gradients) = op.reference_backward([x], {"value": w}, dy)
    for accumulate in (False, True):
        (total,) = op.emit_backward(
            bench, tensors, ty, bench.put(dy), [Target(tdx), Target(tdw, accumulate=accumulate)]
        )
        finish.emit_sum(bench, total)
        bench.run()
        assert not bench.get(tdx).any()
        close(bench.get(tdw), gradients["value"] * (1 + accumulate))


def test_long_sums(bench, rng):
    """The gradient of a gate is a sum over an image."""
    check_plain(Multiply(), bench, rng, (112, 112, 3), (1, 1, 3), n=1)


WEIGHTS = {
    "by channel": lambda c: None,
    "one number": lambda c: (1,),
    "one number, as an image": lambda c: (1, 1, 1),
    "by pixel": lambda c: (5, 6, 1),
    "by row": lambda c: (5, 1, c),
    "each": lambda c: (5, 6, c),
}


def check_weight(op, bench, rng, shape, n=3):
    ((role, weight),) = op.weights(shape).items()
    x, w, dy = (rng.standard_normal(s) for s in ((n, *shape), weight.shape, (n, *shape)))
    tx, tw, tdy = bench.put(x), bench.put(w), bench.put(dy)
    ty, tdx, tdw = bench.empty(x.shape), bench.empty(x.shape), bench.empty(w.shape)
    op.emit_forward(bench, [tx, tw], ty)
    bench.run()
    close(bench.get(ty), op.reference_forward([x], {role: w}))
    (dx,), gradients = op.reference_backward([x], {role: w}, dy)
    for accumulate in (False, True):
        (total,) = op.emit_backward(bench, [tx, tw], ty, tdy, [Target(tdx), Target(tdw, accumulate=accumulate)])
        finish.emit_sum(bench, total)
        bench.run()
        close(bench.get(tdx), dx)
        close(bench.get(tdw), gradients[role] * (1 + accumulate))
    assert op.emit_backward(bench, [tx, tw], ty, tdy, [Target(tdx), None]) == []
    op.emit_backward(bench, [tx, tw], ty, tdy, [None, Target(bench.empty(w.shape))])


@pytest.mark.parametrize("shape", WEIGHTS)
def test_scale(bench, rng, shape):
    for channels in CHANNELS:
        check_weight(Scale(WEIGHTS[shape](channels)), bench, rng, (5, 6, channels))


@pytest.mark.parametrize("shape", ["by channel", "one number"])
def test_weights_as_on_gpus(bench, rng, shape):
    bench.traits = GPU
    check_weight(Bias(WEIGHTS[shape](17)), bench, rng, (5, 6, 17))


@pytest.mark.parametrize("shape", ["by channel", "by pixel"])
def test_bias(bench, rng, shape):
    check_weight(Bias(WEIGHTS[shape](17)), bench, rng, (5, 6, 17))


@pytest.mark.parametrize("axes", [(), (1,), (1, 2), (1, 2, 3), (3,)])
def test_prelu(bench, rng, axes):
    check_weight(PReLU(axes), bench, rng, (5, 6, 17))


def test_weights_of_features(bench, rng):
    for op in (Scale(), Bias(), PReLU()):
        check_weight(op, bench, rng, (33,), n=70)


def test_sums_over_many_rows(bench, rng):
    check_weight(Scale(), bench, rng, (50, 60, 3), n=2)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (Multiply(), [(3, 5, 4), (2, 5, 4)]),
        (Multiply(), [(3, 4)]),
        (Multiply(), [(3, 4)] * 3),
        (Multiply(), [(2, 3, 4, 5), (2, 1, 4, 5)]),
        (Subtract(), [(5, 4), (3, 4)]),
        (Scale((2,)), [(3, 5, 4)]),
        (Scale((3, 3, 5, 4)), [(3, 5, 4)]),
        (Scale((3, 5, 4)), [(1, 5, 4)]),
        (PReLU((4,)), [(3, 5, 4)]),
        (PReLU((0,)), [(3, 5, 4)]),
        (Where(), [(3, 4)] * 2),
        (Where(), [(3, 4), (3, 4), (2, 4)]),
        (BroadcastTo((3, 4)), [(2, 4)]),
        (BroadcastTo((1, 4)), [(3, 4)]),
        (Constant(()), [(4,)]),
    ],
)
def test_shapes_that_do_not_fit(op, shapes):
    with pytest.raises(ShapeError):
        op.output_shape(*shapes)
