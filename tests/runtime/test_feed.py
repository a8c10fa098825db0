"""Examples on their way to a device."""

import numpy as np
import pytest

from edgelearn.compile import Request, make_plan
from edgelearn.graph import Network
from edgelearn.ops import Conv2D
from edgelearn.runtime import Context, Session, list_devices


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.id)
def test_neighbouring_examples_of_an_array_are_not_copied_on_the_host(device, tmp_path):
    network = Network("one", (4, 5, 3))
    network.add("conv", Conv2D(2, 3))
    session = Session(make_plan(Request(network, 4, 4, loss=None), device), Context(device))
    x = np.random.default_rng(0).standard_normal((9, 4, 5, 3)).astype(np.float32)
    for indices in ([2, 3, 4], [2, 4, 3], [5], [0, 2], range(9)):
        found = session.fetch(x, np.array(indices))
        assert np.array_equal(found.reshape(-1, 4, 5, 3), x[np.array(indices)])
        neighbours = list(indices) == list(range(indices[0], indices[-1] + 1))
        assert np.shares_memory(found, x) == (neighbours and not device.is_gpu)
    path = tmp_path / "x"
    x.tofile(path)
    file = np.memmap(path, np.float32, shape=x.shape)
    found = session.fetch(file, np.arange(3))
    assert np.array_equal(found.reshape(-1, 4, 5, 3), x[:3]) and not np.shares_memory(found, file)
    session.close()
