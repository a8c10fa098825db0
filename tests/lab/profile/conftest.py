"""A small network, planned and profiled once on every OpenCL device."""

import pytest

from edgelearn.compile import Plan, Request, make_plan
from edgelearn.graph import Network
from edgelearn.lab.profile import Peaks, Roofline, measure_peaks, profile
from edgelearn.ops import SGD, BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, ReLU
from edgelearn.runtime import Context, list_devices

BATCH, MICRO = 3, 2


def network() -> Network:
    """8 x 8 x 3, to 4 x 4 x 16, twice, to 4 x 4 x 32, to 5 classes."""
    net = Network("small", (8, 8, 3))
    for name, op in (
        ("conv", Conv2D(16, 3, strides=2, padding="same", use_bias=False)),
        ("dw", DepthwiseConv2D(3, padding="same", use_bias=False)),
        ("pw", Conv2D(32, 1, use_bias=False)),
    ):
        net.add(name, op)
        net.add(f"{name}_bn", BatchNormalization())
        net.add(f"{name}_relu", ReLU(6))
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(5))
    return net


@pytest.fixture(scope="session", params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def device(request):
    return request.param


@pytest.fixture(scope="session")
def peaks(device) -> Peaks:
    return measure_peaks(Context(device), seconds=0.01)


@pytest.fixture(scope="session")
def plan(device) -> Plan:
    return make_plan(Request(network(), BATCH, MICRO, SGD()), device)


@pytest.fixture(scope="session")
def roofline(plan, device, peaks) -> Roofline:
    return profile(plan, device, rounds=5, peaks=peaks)
