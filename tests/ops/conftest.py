"""Every test of an op runs on every OpenCL device of the machine."""

import numpy as np
import pytest

from edgelearn.runtime import Context, Kernels, list_devices

from .harness import GPU, Workbench


@pytest.fixture(scope="session", params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def kernels(request) -> Kernels:
    return Kernels(Context(request.param))


@pytest.fixture
def bench(request, kernels) -> Workbench:
    """Launches as the device gets them; with AS_GPUS_TOO also as GPUs do: four channels a work-item, sums shared by a
    group."""
    bench = Workbench(kernels.context, kernels)
    if getattr(request, "param", ""):
        bench.traits = GPU
    return bench


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
