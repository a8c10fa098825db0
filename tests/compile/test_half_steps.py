"""Training steps in half precision: against float64, simulated and stored, and what is kept of them."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.compile.precision import KINDS
from edgelearn.graph import Network
from edgelearn.launch import Role, Traffic
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, Add, Conv2D, Dense, Flatten, Float16, Format, MaxPooling2D, ReLU
from edgelearn.ops.tensor import unpack

from .quantized_reference import Twin
from .saved import saved_bytes
from .test_networks import CLASSES, EXAMPLES, drawn, inception, residual
from .test_plan import batches
from .test_quantized_steps import without_dropout

HALF = Float16()
HALVES = Precision(HALF, HALF, HALF, norm_inputs=HALF)
STORED = replace(HALVES, simulated=False)


def step(start, request: Request, weights, x, labels):
    """(loss, gradients) of a first step."""
    session = start(request, weights)
    loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    assert finite and not session.records()
    return loss, session.gradients()


def distance(gradients, others) -> float:
    difference = sum(np.linalg.norm(g - others[name]) ** 2 for name, g in gradients.items())
    return np.sqrt(difference / sum(np.linalg.norm(g) ** 2 for g in others.values()))


@pytest.mark.parametrize(
    ("make", "batchnorm", "kind"),
    [
        *((without_dropout, "batch", kind) for kind in KINDS),
        *((residual, "moving", kind) for kind in KINDS if kind != "norm_inputs"),
    ],
)
def test_steps(start, make, batchnorm, kind):
    """Halves lie so close to each other that some values are rounded otherwise in float32 than in float64. But those
    of the reference are far nearer than those without rounding."""
    network = make()
    weights, x, labels = drawn(network, 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, precision=Precision(**{kind: HALF}))
    loss, expected = Twin(request, weights).train(x, labels, 1)
    found, gradients = step(start, request, weights, x, labels)
    _, unrounded = step(start, replace(request, precision=Precision()), weights, x, labels)
    assert found == pytest.approx(loss, rel=1e-4)
    assert distance(gradients, expected) < 0.3 * distance(unrounded, expected)


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("make", (residual, without_dropout, inception))
def test_stored_halves_are_what_simulated_ones_are(start, make, batchnorm):
    """To the bit without BatchNorm. It adds up stored values in other kernels, which may round sums otherwise; and
    behind kept statistics kernels for the pass to data are rounded with scales in them."""
    network = make()
    weights, x, labels = drawn(network, 0)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, precision=HALVES)
    loss, gradients = step(start, request, weights, x, labels)
    other, others = step(start, replace(request, precision=STORED), weights, x, labels)
    if make is inception:
        assert loss == other and all(np.array_equal(g, others[name]) for name, g in gradients.items())
    assert loss == pytest.approx(other, rel=1e-5)
    assert distance(gradients, others) < 1e-3


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_saved_activations_are_a_half_or_a_quarter(kernels, batchnorm):
    """The whole network is trained. Besides integers a plan keeps the input and vectors of BatchNorm."""
    network = mobilenet_v1((128, 128, 3), 0.25, 5)
    integers = Precision(Format(symmetric=True), Format(), Format(), norm_inputs=Format(), simulated=False)
    saved, planned = {}, {}
    for name, precision in (("float32", Precision()), ("halves", STORED), ("integers", integers)):
        request = Request(network, 2, 2, SGD(0.1), batchnorm, precision=precision)
        plan = make_plan(request, kernels.context.device)
        saved[name], planned[name] = saved_bytes(plan, 2), plan.bytes_by_role[Role.TEMPORARY]
    assert 0.5 * saved["float32"] <= saved["halves"] <= 0.52 * saved["float32"]
    assert 0.25 * saved["float32"] <= saved["integers"] <= 0.28 * saved["float32"]
    assert planned["integers"] < 0.4 * planned["float32"] and planned["halves"] < 0.8 * planned["float32"]


def test_predicted_traffic_and_memory_are_what_is_moved_and_allocated(start):
    network = inception()
    weights, x, labels = drawn(network, 0)
    session = start(Request(network, EXAMPLES, 2, SGD(0.1), precision=STORED), weights)
    assert session.train(batches(session, x, labels), EXAMPLES, 0.1, 1)[2]
    assert session.traffic == session.plan.traffic()
    assert session.traffic != Traffic() and session.allocated_bytes == session.plan.peak_bytes


def hiding() -> Network:
    """An overflow of the sum to -infinity is gone behind the ReLU."""
    net = Network("hiding", (4, 4, 16))
    a = net.add("a", Conv2D(16, 1))
    b = net.add("b", Conv2D(16, 1), "input")
    net.add("sum", Add(), a, b)
    net.add("relu", ReLU())
    net.add("pool", MaxPooling2D())
    net.add("flatten", Flatten())
    net.add("dense", Dense(CLASSES))
    return net


@pytest.mark.parametrize("precision", (HALVES, STORED), ids=("simulated", "stored"))
def test_an_overflow_fails_the_step(start, precision):
    network = hiding()
    weights, x, labels = drawn(network, 0)
    weights["a/bias"][3] = weights["b/bias"][3] = -40_000.0
    session = start(Request(network, EXAMPLES, 2, SGD(0.1), precision=precision), weights)
    assert not session.train(batches(session, x, labels), EXAMPLES, 0.1, 1)[2]
    assert all(np.array_equal(w, weights[name]) for name, w in session.weights().items())
    launch, buffer = session.first_nonfinite(batches(session, x, labels), EXAMPLES, 0.1, 1)
    assert launch.kernel == "round_halves" and buffer.layer == "sum"
    weights["b/bias"][3] = 0.0
    session.load(weights)
    assert session.train(batches(session, x, labels), EXAMPLES, 0.1, 1)[2]


def test_small_gradients_vanish(start):
    """No loss is scaled: what is below 2^-25 becomes 0."""
    network = hiding()
    weights, x, labels = drawn(network, 0)
    weights["dense/kernel"] *= np.float32(2.0**-30)
    request = Request(network, EXAMPLES, EXAMPLES, SGD(0.0), precision=replace(HALVES, weights=None))
    _, gradients = step(start, request, weights, x, labels)
    assert not gradients["a/kernel"].any() and gradients["dense/kernel"].any()


def test_the_input_is_rounded_where_it_lies(start):
    network = hiding()
    weights, x, labels = drawn(network, 0)
    session = start(Request(network, EXAMPLES, EXAMPLES, SGD(0.0), precision=STORED), weights)
    first = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    words = session.read(session.plan.storage.input.buffer)
    assert np.array_equal(unpack(words, x.shape), HALF.round(x))
    assert session.train([(None, labels)], EXAMPLES, 0.0, 2) == first
