"""Training steps on integers beside the same steps simulated in float32."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.graph import Precision, Request, Session, make_plan
from edgelearn.ops import SGD
from edgelearn.ops.estimators import DSGC, CurrentMinMax, InHindsightMinMax
from edgelearn.ops.formats import Format

from .test_networks import EXAMPLES, drawn, residual, separable
from .test_plan import batches

FORMATS = {"weights": Format(symmetric=True), "activations": Format(), "gradients": Format()}
STATIC = Precision(**FORMATS, estimator=InHindsightMinMax(0.5), simulated=False)
PRECISIONS = {
    "in hindsight": STATIC,
    "current": replace(STATIC, estimator=CurrentMinMax()),
    "searched": replace(STATIC, gradient_estimator=DSGC(every=2)),
    "6 bits, some in float32": replace(
        STATIC, weights=Format(6, symmetric=True), exceptions={"pw*": None, "input": None}
    ),
}


@pytest.fixture
def start(kernels):
    opened = []

    def open_session(request: Request, weights) -> Session:
        opened.append(Session(make_plan(request, kernels.context.device), kernels.context, kernels))
        opened[-1].load(weights)
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.mark.parametrize("micro", (2, EXAMPLES))
@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("make", (residual, separable))
def test_steps_agree_with_simulated_ones(start, make, name, micro):
    """With statistics of the batch, so that no kernel is rounded a second time with scales in it."""
    network = make()
    weights, x, labels = drawn(network, 0)
    request = Request(network, EXAMPLES, micro, SGD(0.0), "batch", seed=5, precision=PRECISIONS[name])
    found = []
    for simulated in (False, True):
        session = start(replace(request, precision=replace(request.precision, simulated=simulated)), weights)
        for step in (1, 2, 3):
            loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, step)
            assert finite
        found.append((loss, session.gradients(), session.records()))
    (loss, gradients, records), (other_loss, others, other_records) = found
    assert loss == pytest.approx(other_loss, rel=1e-3)
    for parameter, g in gradients.items():
        assert np.linalg.norm(g - others[parameter]) <= 0.05 * np.linalg.norm(others[parameter]) + 1e-4, parameter
    assert set(records) == set(other_records)
