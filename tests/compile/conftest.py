"""Networks run on every OpenCL device of the machine, sharing compiled kernels."""

import pytest

from edgelearn.compile import Request, make_plan
from edgelearn.ops import Traits
from edgelearn.runtime import Context, Kernels, Session, list_devices


@pytest.fixture(scope="session", params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def kernels(request) -> Kernels:
    return Kernels(Context(request.param))


@pytest.fixture
def start(kernels):
    """Opens sessions of plans with weights loaded, and closes them after the test."""
    opened = []

    def open_session(request: Request, weights, traits: Traits | None = None) -> Session:
        opened.append(Session(make_plan(request, kernels.context.device, traits=traits), kernels.context, kernels))
        opened[-1].load(weights)
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()
