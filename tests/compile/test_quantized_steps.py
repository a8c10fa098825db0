"""Whole small networks with quantized tensors: training steps against float64, and what micro-batches, evaluation and
failed steps do to ranges."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from edgelearn.compile import Kind, Precision, RangeMode, Request, make_plan
from edgelearn.errors import FormatError, PlanError
from edgelearn.graph import Network
from edgelearn.launch import Role
from edgelearn.ops import SGD, Format
from edgelearn.ops.observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, Observer, RunningMinMax
from edgelearn.ops.quantize import FIELDS

from .quantized_reference import Twin, fitting
from .steps import batches
from .test_networks import EXAMPLES, drawn, residual, separable
from .test_plan import small

EVERYTHING = {
    "weights": Format(4, symmetric=True, per_channel=True),
    "activations": Format(4),
    "gradients": Format(4, rounding="stochastic"),
}


def field(record: np.ndarray, name: str) -> float:
    return record[FIELDS.index(name)]


PRECISIONS = {
    "weights": Precision(weights=Format(4)),
    "activations, current": Precision(activations=Format(4), observer=CurrentMinMax()),
    "activations, stochastic": Precision(activations=Format(4, rounding="stochastic")),
    "gradients": Precision(gradients=Format(4, symmetric=True)),
    "all, in hindsight": Precision(**EVERYTHING, observer=InHindsightMinMax(0.5), traced=True),
    "all, running": Precision(**EVERYTHING, norm_inputs=Format(4), observer=RunningMinMax(0.5)),
    "all, exceptions": Precision(
        **EVERYTHING, norm_inputs=Format(5), exceptions={"input": None, "stem": None, "dense": 6}
    ),
}


# Sums and means of quantized values are fractions of steps, and some of them halves: float32 rounds these either way.
LATTICES = {"*_add": None, "?_relu": None, "pool": None}


def without_dropout() -> Network:
    """Every kind of layer that has a kernel, and padding, which only moves values."""
    net = separable()
    replay = Network(net.name, net.input_shape)
    for node in net.nodes.values():
        if node.name != "dropout":
            replay.add(node.name, node.op, *("pw1_relu" if i == "dropout" else i for i in node.inputs))
    return replay


CASES = itertools.product((residual, without_dropout), PRECISIONS, ("moving", "batch"))


@pytest.mark.parametrize(
    ("make", "name", "batchnorm", "micro"),
    [(*case, micro) for case, micro in zip(CASES, itertools.cycle((2, EXAMPLES, EXAMPLES, 2)), strict=False)],
)
def test_steps(start, make, name, micro, batchnorm):
    """Two steps from the same weights: the second has the ranges that the first has left."""
    network = make()
    precision = replace(PRECISIONS[name], exceptions={**LATTICES, **PRECISIONS[name].exceptions})
    precision = fitting(precision, network)
    request = Request(network, EXAMPLES, micro, SGD(0.0), batchnorm, seed=2**33 + 5, precision=precision)
    for seed in range(30):  # the first one with which no value is so near a corner that float32 may round it otherwise
        weights, x, labels = drawn(network, seed)
        twin = Twin(request, weights)
        steps = [twin.train(x, labels, step) for step in (1, 2)]
        if twin.closest > 2e-6:
            break
    assert twin.closest > 2e-6
    session = start(request, weights)
    for step, (loss, gradients) in enumerate(steps, 1):
        found, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, step)
        assert finite and found == pytest.approx(loss, rel=1e-5)
        largest = max(np.abs(g).max() for g in gradients.values())
        for parameter, g in session.gradients().items():
            expected = gradients[parameter]
            scale = max(np.abs(expected).max(), 3e-2 * largest)
            assert np.abs(g - expected).max() <= 5e-5 * scale, parameter
    records = session.records()
    assert set(records) == set(twin.found)
    for tensor, record in records.items():
        for names, expected in (("low", "high"), twin.used[tensor]), (("least", "most"), twin.found[tensor]):
            assert [field(record, n) for n in names] == pytest.approx(expected, rel=1e-4, abs=1e-7), tensor
        assert field(record, "updates") == 2


@dataclass(frozen=True)
class Widest(Observer):
    """An observer of a user's own, as in the documentation."""

    def next(self, low, high, least, most, updates):
        return np.minimum(low, least), np.maximum(high, most)


def prepared(precision: Precision, micro: int = 6, rate: float = 0.05, n: int = 6):
    """(request, weights, a function that trains one step in a session) of a network with every kind of kernel."""
    network = small()
    weights, x, labels = drawn(network, 3)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n, *network.input_shape)).astype(np.float32)
    labels = rng.integers(0, 5, n).astype(np.int32)
    request = Request(network, n, micro, SGD(rate, momentum=0.9), seed=7, precision=precision)
    return request, weights, lambda s, step: s.train(batches(s, x, labels), n, rate, step), x, labels


STATIC = Precision(**EVERYTHING, observer=InHindsightMinMax(), traced=True)


def test_micro_batches_make_no_difference_to_known_ranges(start):
    """Not to what is rounded, nor to what is found."""
    request, weights, train, *_ = prepared(STATIC)
    session = start(request, weights)
    assert train(session, 1)[2]
    known, results = session.records(), []
    for micro in (6, 4, 1):
        session = start(replace(request, micro_batch=micro), weights)
        session.load_records(known)
        assert train(session, 2)[2]
        results.append((session.gradients(), session.records()))
    (gradients, records), *others = results
    for other_gradients, other_records in others:
        for name, g in gradients.items():
            assert np.linalg.norm(g - other_gradients[name]) <= 1e-5 * np.linalg.norm(g), name
        for name, record in records.items():
            assert np.allclose(record, other_records[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(
    "observer", (InHindsightMinMax(), RunningMinMax(), DSGC(every=3), Fixed(-3, 3), Widest()), ids=type
)
def test_a_resumed_training_has_the_same_bits(start, observer):
    request, weights, train, *_ = prepared(Precision(**EVERYTHING, observer=observer))
    one = start(request, weights)
    for step in (1, 2):
        assert train(one, step)[2]
    two = start(request, weights | one.weights())
    two.load_optimizer_state(one.optimizer_state())
    two.load_records(one.records())
    for step in (3, 4, 5):
        assert train(one, step) == train(two, step)
    first, second = one.weights(), two.weights()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(np.array_equal(record, two.records()[name]) for name, record in one.records().items())


def test_an_estimator_of_ones_own(start):
    request, weights, train, *_ = prepared(Precision(gradients=Format(8), observer=Widest()))
    session = start(request, weights)
    widest: dict[str, list[float]] = {}
    for step in (1, 2, 3, 4):
        train(session, step)
        for name, record in session.records().items():
            widest.setdefault(name, []).append(field(record, "most"))
            used = max(widest[name][: max(step - 1, 1)])
            assert field(record, "high") == pytest.approx(used, rel=1e-6)
            assert field(record, "next_high") == pytest.approx(max(widest[name]), rel=1e-6)


def test_an_estimator_that_goes_wrong(start):
    @dataclass(frozen=True)
    class Wrong(Observer):
        def next(self, low, high, least, most, updates):
            return high, low

    request, weights, train, *_ = prepared(Precision(gradients=Format(8), observer=Wrong()))
    with pytest.raises(PlanError, match="Wrong gave the range"):
        train(start(request, weights), 1)


def test_searches_happen_when_they_are_due(start):
    request, weights, train, *_ = prepared(Precision(gradients=Format(4), observer=DSGC(every=3)))
    session, ranges = start(request, weights), []
    for step in range(1, 8):
        train(session, step)
        ranges.append({name: field(record, "high") for name, record in session.records().items()})
    for name in ranges[0]:
        used = [r[name] for r in ranges]
        assert used[0] == used[1] == used[2] != used[3] == used[4] == used[5] != used[6], name


def test_a_failed_step_moves_no_range(start):
    request, weights, train, x, labels = prepared(STATIC)
    session = start(request, weights)
    train(session, 1)
    before = session.records()
    bad = x.copy()
    bad[4, 3, 3, 1] = np.inf
    assert not session.train(batches(session, bad, labels), 6, 0.1, 2)[2]
    after = session.records()
    for name, record in before.items():
        assert np.array_equal(record[13:], after[name][13:]), name
    fresh = start(request, weights)
    assert not fresh.train(batches(fresh, bad, labels), 6, 0.1, 1)[2] and not fresh.ranges_known
    assert train(fresh, 1)[2] and fresh.ranges_known


@pytest.mark.parametrize("observer", (CurrentMinMax(), RunningMinMax(), InHindsightMinMax()), ids=type)
def test_evaluation(start, observer):
    """Before training, ranges are the examples' own; afterwards they are training's, unless none are kept. It changes
    none of them."""
    request, weights, train, x, labels = prepared(Precision(activations=Format(3), observer=observer), rate=0.0)
    session = start(request, weights)
    packed, _ = next(batches(session, x, labels))
    before = session.evaluate(packed, labels)
    loss, correct, _ = train(session, 1)
    assert before == pytest.approx((6 * loss, correct), rel=1e-5)
    records = session.records()
    small_examples = packed / 8
    found = session.evaluate(small_examples, labels)
    assert (session.predict(small_examples, 6).argmax(-1) == labels).sum() == found[1]
    assert all(np.array_equal(records[name][13:], record[13:]) for name, record in session.records().items())
    fresh = start(request, weights)
    assert (found == fresh.evaluate(small_examples, labels)) == isinstance(observer, CurrentMinMax)


def test_records_of_another_precision(start):
    request, weights, *_ = prepared(Precision(gradients=Format(8)))
    with pytest.raises(FormatError, match="lack 'conv/gradients'"):
        start(request, weights).load_records({})


def test_what_a_plan_says(kernels):
    """A static range costs one launch a tensor, a dynamic one three; the float32 plan has none of it."""
    request, *_ = prepared(Precision(gradients=Format(8), observer=InHindsightMinMax()))
    plan, device = make_plan(request, kernels.context.device), kernels.context.device
    known, measured = (plan.program(Kind.TRAIN, 6, mode).micro for mode in (RangeMode.OBSERVED, RangeMode.MEASURED))
    plain = make_plan(replace(request, precision=Precision()), device)
    assert len(known) == len(plain.program(Kind.TRAIN, 6).micro) + 4
    assert len(measured) == len(known) + 2 * 4
    assert plan.bytes_by_role[Role.RANGE] == 4 * plan.alignment and Role.RANGE not in plain.bytes_by_role
    assert "gradients    8 bits asymmetric; InHindsightMinMax(momentum=0.9)" in str(plan)
    assert plan.to_dict()["precision"] == request.precision.to_dict()


def trained(start, precision: Precision, steps: int = 80, n: int = 16) -> float:
    """The mean loss of the last steps of a training from scratch on noisy pictures of five kinds, with batch
    statistics."""
    network, losses = small(), []
    for seed in range(4):  # one alone differs by 0.02 from rounding
        rng = np.random.default_rng(seed)
        kinds = 0.5 * rng.standard_normal((5, *network.input_shape))
        request = Request(network, n, n, SGD(0.05, momentum=0.9), "batch", seed=seed, precision=precision)
        session = start(request, network.initialize(seed))
        for step in range(1, steps + 1):
            labels = rng.integers(0, 5, n).astype(np.int32)
            x = np.float32(kinds[labels] + 1.5 * rng.standard_normal((n, *network.input_shape)))
            loss, _, finite = session.train(batches(session, x, labels), n, 0.05, step)
            assert finite
            losses += [loss] * (step > steps - 20)
    return np.mean(losses)


def test_what_batch_statistics_normalize_can_have_8_bits(start):
    """It trains as well as in float32, where 2 bits don't."""
    eight = Precision(Format(symmetric=True), Format(), Format(rounding="stochastic"), simulated=False)
    losses = [trained(start, replace(eight, norm_inputs=fmt)) for fmt in (None, Format(8), Format(2))]
    assert losses[1] < losses[0] + 0.03 < losses[2] - 0.1
