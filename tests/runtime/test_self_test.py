import sys

import pytest

from edgelearn.runtime import kernels, list_devices, self_test

DEVICES = list_devices()


@pytest.fixture(params=DEVICES, ids=[device.id for device in DEVICES])
def device(request):
    return request.param


def test_passes(device):
    result = self_test(device, seconds=0.05)
    assert result.passed, result.problem
    assert result.bandwidth > 1e8
    assert result.flops > 1e8
    assert 0 < result.seconds < 60


def test_results_of_few_blocks(device, monkeypatch):
    """Few enough for a simulated device."""
    module = sys.modules["edgelearn.runtime.devices"]
    for name, value in {"BLOCKS": 2048, "ROUNDS": 64, "REPEATS": 1}.items():
        monkeypatch.setattr(module, name, value)
    result = self_test(device, seconds=0)
    assert result.passed, result.problem


def test_a_compiler_that_fails(device, monkeypatch):
    monkeypatch.setattr(kernels, "read_source", lambda name, kernel: "__kernel void triad(nonsense")
    result = self_test(device, seconds=0.05)
    assert not result.passed
    assert result.problem
    assert "\n" not in result.problem


def test_a_device_that_miscalculates(device, monkeypatch):
    read = kernels.read_source
    monkeypatch.setattr(kernels, "read_source", lambda name, kernel: read(name, kernel).replace("* 3.0f", "* 4.0f"))
    result = self_test(device, seconds=0.05)
    assert not result.passed
    assert "a + 3 b" in result.problem
