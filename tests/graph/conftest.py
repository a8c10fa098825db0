"""Networks run on every OpenCL device of the machine, sharing compiled kernels."""

import pytest

from edgelearn.device import Context, list_devices
from edgelearn.launch import Kernels


@pytest.fixture(scope="session", params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def kernels(request) -> Kernels:
    return Kernels(Context(request.param))
