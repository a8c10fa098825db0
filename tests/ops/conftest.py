"""Every test of an op runs on every OpenCL device of the machine."""

import numpy as np
import pytest

from edgelearn.runtime import Context, Kernels, list_devices

from .harness import Workbench


@pytest.fixture(scope="session", params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def kernels(request) -> Kernels:
    return Kernels(Context(request.param))


@pytest.fixture
def bench(kernels) -> Workbench:
    return Workbench(kernels.context, kernels)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
