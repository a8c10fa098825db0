"""Training steps in each compute type by plain code, against float64."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Request, make_plan
from edgelearn.errors import PlanError
from edgelearn.models import resnet18
from edgelearn.ops import SGD, Compute, Format, Traits
from edgelearn.units import MB

from .reference import train_step
from .test_half_steps import distance
from .test_networks import EXAMPLES, drawn, inception, residual
from .test_plan import batches
from .test_quantized_steps import without_dropout

BOUNDS = {"tf32": 0.003, "fp16": 0.004, "bf16": 0.03}  # of the gradients, relative to all of them


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("make", (residual, inception, without_dropout))
@pytest.mark.parametrize("name", BOUNDS)
def test_steps(start, make, batchnorm, name):
    network = make()
    weights, x, labels = drawn(network, 1)
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, compute=Compute(name, plain=True))
    expected = train_step(request, weights, x, labels, 1)
    session = start(request, weights)
    loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    gradients = session.gradients()
    off = distance(gradients, {n: expected.gradients[n] for n in gradients})
    print(make.__name__, batchnorm, name, off, loss - expected.loss)
    assert finite
    assert loss == pytest.approx(expected.loss, rel=BOUNDS[name])
    assert BOUNDS[name] / 100 < off < BOUNDS[name]
