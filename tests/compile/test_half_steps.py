"""Training steps in half precision: against float64, simulated and stored, and what is kept of them.

Training steps in each compute type by plain code, against float64.
"""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Precision, Request, lower, make_plan
from edgelearn.compile.plan import Kind, stored
from edgelearn.compile.precision import KINDS
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.launch import Role, Traffic
from edgelearn.models import mobilenet_v1, resnet18
from edgelearn.ops import SGD, Add, Compute, Conv2D, Dense, Flatten, Float16, Format, MaxPooling2D, ReLU, Traits
from edgelearn.ops.tensor import unpack

from .quantized_reference import Twin, distance
from .reference import train_step
from .steps import batches, first_step
from .test_networks import CLASSES, EXAMPLES, drawn, head, inception, residual, unit
from .test_plan import saved_bytes
from .test_quantized_steps import without_dropout

HALF = Float16()
HALVES = Precision(HALF, HALF, HALF, norm_inputs=HALF)
STORED = replace(HALVES, simulated=False)


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
    data = weights, x, labels = drawn(network, 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, precision=Precision(**{kind: HALF}))
    loss, expected = Twin(request, weights).train(x, labels, 1)
    found, gradients = first_step(start, request, data)
    _, unrounded = first_step(start, replace(request, precision=Precision()), data)
    assert found == pytest.approx(loss, rel=1e-4)
    assert distance(gradients, expected) < 0.3 * distance(unrounded, expected)


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("make", (residual, without_dropout, inception))
def test_stored_halves_are_what_simulated_ones_are(start, make, batchnorm):
    """To the bit without BatchNorm. It adds up stored values in other kernels, which may round sums otherwise; and
    behind kept statistics kernels for the pass to data are rounded with scales in them."""
    network = make()
    data = drawn(network, 0)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, precision=HALVES)
    loss, gradients = first_step(start, request, data)
    other, others = first_step(start, replace(request, precision=STORED), data)
    if make is inception:
        assert loss == other and all(np.array_equal(g, others[name]) for name, g in gradients.items())
    assert loss == pytest.approx(other, rel=1e-5)
    assert distance(gradients, others) < 1e-3


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("units", ((), ("MMA",)), ids=("no units", "matrix units"))
def test_saved_activations_are_a_half_or_a_quarter(kernels, units, batchnorm):
    """The whole network is trained. Besides integers a plan keeps the input and vectors of BatchNorm; matrix units read
    the integers of the input in blocks of 16 channels, not of 3."""
    traits = replace(Traits.of(kernels.context.device), find_units=lambda: units)
    network = mobilenet_v1((128, 128, 3), 0.25, 5)
    integers = Precision(Format(symmetric=True), Format(), Format(), norm_inputs=Format(), simulated=False)
    saved, planned = {}, {}
    for name, precision in (("float32", Precision()), ("halves", STORED), ("integers", integers)):
        request = Request(network, 2, 2, SGD(0.1), batchnorm, precision=precision)
        plan = make_plan(request, kernels.context.device, traits=traits)
        padded = sum(b.nbytes for b in stored(plan.program(Kind.TRAIN, 2)) if b.name == "input/padded integers")
        assert bool(padded) == (name == "integers" and bool(units))
        padding = padded * 13 // 16
        saved[name], planned[name] = saved_bytes(plan, 2) - padding, plan.bytes_by_role[Role.TEMPORARY] - padding
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
    data = drawn(network, 0)
    data[0]["dense/kernel"] *= np.float32(2.0**-30)
    request = Request(network, EXAMPLES, EXAMPLES, SGD(0.0), precision=replace(HALVES, weights=None))
    _, gradients = first_step(start, request, data)
    assert not gradients["a/kernel"].any() and gradients["dense/kernel"].any()


def test_the_input_is_rounded_where_it_lies(start):
    network = hiding()
    weights, x, labels = drawn(network, 0)
    session = start(Request(network, EXAMPLES, EXAMPLES, SGD(0.0), precision=STORED), weights)
    first = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    words = session.read(session.plan.storage.input.buffer)
    assert np.array_equal(unpack(words, x.shape), HALF.round(x))
    assert session.train([(None, labels)], EXAMPLES, 0.0, 2) == first


BOUNDS = {"tf32": 0.003, "fp16": 0.005, "bf16": 0.04}  # of the gradients, where no ReLU flips by rounding


@pytest.mark.parametrize(
    ("name", "make", "batchnorm"),
    [
        ("bf16", residual, "moving"),
        ("bf16", inception, "batch"),  # with layers whose kernels take floats alone
        ("fp16", residual, "batch"),
        ("tf32", inception, "moving"),
    ],
)
def test_steps_in_compute_types(start, name, make, batchnorm):
    network = make()
    data = drawn(network, 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, compute=Compute(name, plain=True))
    expected = train_step(request, *data, 1)
    loss, gradients = first_step(start, request, data)
    assert loss == pytest.approx(expected.loss, rel=BOUNDS[name])
    off = distance(gradients, {n: expected.gradients[n] for n in gradients})
    assert 1e-5 < off < BOUNDS[name]


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_depth_rows(start, batchnorm):
    """By units, forward products read transposed kernels and those for the gradient of the input scaled ones: as
    plain code without units, whose rounding is the same."""
    network = Network("rows", (6, 7, 3))
    for name in "ab":
        unit(network, name, Conv2D(20, 3, padding="same", use_bias=False))
    data = drawn(head(network), 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, compute=Compute("tf32", plain=True))
    traits = Traits(gpu=True, compute_units=2, find_units=lambda: ("PLAIN_WGMMA",))
    loss, gradients = first_step(start, request, data)
    other, others = first_step(start, replace(request, compute=Compute("tf32")), data, traits)
    assert distance(gradients | {"loss": loss}, others | {"loss": other}) < 1e-3


@pytest.mark.parametrize("frozen", (False, True))
@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("kind", ("tf32", "bf16"))
def test_a_first_layer_over_squares(start, monkeypatch, kind, batchnorm, frozen):
    monkeypatch.setattr(lower, "SQUARES_FROM", 1)
    network = Network("squares", (9, 8, 3))
    unit(network, "stem", Conv2D(20, 5, 2, "same"))
    unit(network, "b", Conv2D(20, 1, use_bias=False))
    data = drawn(head(network), 1)
    if frozen:
        network.freeze("stem", "stem_bn")
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, compute=Compute(kind, plain=True))
    loss, gradients = first_step(start, request, data)  # over pixels
    traits = Traits(gpu=True, compute_units=2, find_units=lambda: ("PLAIN_WGMMA",))
    other, others = first_step(start, replace(request, compute=Compute(kind)), data, traits)
    assert other == pytest.approx(loss, rel=BOUNDS[kind])
    assert distance(gradients, others) < BOUNDS[kind]


def test_bytes_of_halves(kernels):
    traits = Traits(gpu=True, compute_units=132, find_units=lambda: ("MMA",))
    request = Request(resnet18((224, 224, 3)), 32, 32, SGD(0.1, momentum=0.9), "batch")
    floats, halves = (
        make_plan(replace(request, compute=compute), kernels.context.device, traits=traits)
        for compute in (Compute(), Compute("bf16"))
    )
    assert halves.peak_bytes <= 0.6 * floats.peak_bytes


def test_a_device_without_units(kernels):
    request = Request(residual(), EXAMPLES, 2, SGD(0.0), compute=Compute("bf16"))
    with pytest.raises(PlanError, match="plain=True"):
        make_plan(request, kernels.context.device, traits=Traits())


def test_contradictions(kernels):
    with pytest.raises(PlanError, match="fp64"):
        Compute("fp64")
    halves = Compute("bf16", plain=True)
    request = Request(residual(), EXAMPLES, 2, SGD(0.0), precision=Precision(weights=Format(8)), compute=halves)
    with pytest.raises(PlanError, match="bf16"):
        make_plan(request, kernels.context.device)


def test_gradients_of_few(start):
    """fp16 without a loss scale loses gradients that its subnormals can't hold; scaled, they come back."""
    network = residual()
    weights, x, labels = drawn(network, 1)
    request = Request(network, EXAMPLES, EXAMPLES, SGD(0.0), "batch", compute=Compute("fp16", plain=True))
    session = start(request, weights)
    found = []
    for scale in (65536.0, 2.0**-20):
        session.loss_scale = scale
        _, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
        assert finite
        found.append(session.gradients())
    expected = train_step(request, weights, x, labels, 1).gradients
    expected = {name: expected[name] for name in found[0]}
    assert distance(found[0], expected) < 0.25 * distance(found[1], expected)
