"""Training steps in each compute type by plain code, against float64."""

from dataclasses import replace

import pytest

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.errors import PlanError
from edgelearn.models import resnet18
from edgelearn.ops import SGD, Compute, Format, Traits

from .reference import train_step
from .test_half_steps import distance
from .test_networks import EXAMPLES, drawn, inception, residual
from .test_plan import batches

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
def test_steps(start, name, make, batchnorm):
    network = make()
    weights, x, labels = drawn(network, 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, compute=Compute(name, plain=True))
    expected = train_step(request, weights, x, labels, 1)
    session = start(request, weights)
    loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    gradients = session.gradients()
    assert finite
    assert loss == pytest.approx(expected.loss, rel=BOUNDS[name])
    off = distance(gradients, {n: expected.gradients[n] for n in gradients})
    assert 1e-5 < off < BOUNDS[name]


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_depth_rows(start, batchnorm):
    """By units, forward products read transposed kernels and those for the gradient of the input scaled ones: as
    plain code without units, whose rounding is the same."""
    network = residual()
    weights, x, labels = drawn(network, 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, compute=Compute("tf32", plain=True))
    traits = Traits(gpu=True, compute_units=2, find_units=lambda: ("PLAIN_WGMMA",))
    found = []
    for session in (start(request, weights), start(replace(request, compute=Compute("tf32")), weights, traits)):
        loss, _, _ = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
        found.append(session.gradients() | {"loss": loss})
    assert distance(*found) < 1e-3


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
