import json

import pytest

from edgelearn.errors import FormatError, UsageError
from edgelearn.lab.profile import EdgeDevice, edge_devices
from edgelearn.lab.profile.projection import DESCRIBED

GOOD = json.loads((DESCRIBED / "adreno-540.json").read_text())


def write(tmp_path, content) -> str:
    path = tmp_path / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("name", edge_devices())
def test_described(name):
    device = EdgeDevice.load(name)
    assert device.peaks("fp32").flops == device.flops["fp32"] <= device.flops["fp16"]
    assert device.peaks("fp16").bandwidth_at(123) == device.bandwidth
    assert all("http" in text or "assumption" in text or "same page" in text for text in device.sources.values())
    assert (device.traits().gpu, device.traits().compute_units) == (device.device().is_gpu, device.compute_units)


def test_a_file_of_ones_own(tmp_path):
    device = EdgeDevice.load(write(tmp_path, GOOD | {"name": "mine", "flops": {"fp32": 1e9}}))
    assert device.name == "mine"
    with pytest.raises(FormatError, match="mine has no FLOP/s in fp16, only in fp32"):
        device.peaks("fp16")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "tpu"}, "kind"),
        ({"flops": {"fp16": 1e9}}, "fp32"),
        ({"flops": 1e9}, "flops"),
        ({"flops": {"fp32": 0}}, "fp32"),
        ({"bandwidth": "fast"}, "bandwidth: 'fast'"),
        ({"memory": float("inf")}, "memory: inf"),
        ({"launch": True}, "launch: True"),
        ({"cores": 4}, "cores"),
        ({"sources": {"flops": "a book"}}, "sources"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, change, problem):
    path = write(tmp_path, GOOD | change)
    with pytest.raises(FormatError, match=problem) as caught:
        EdgeDevice.load(path)
    assert path in str(caught.value) and "adreno-540.json" in str(caught.value)


def test_no_description(tmp_path):
    with pytest.raises(UsageError, match=r"'adreno-1'.*adreno-540, "):
        EdgeDevice.load("adreno-1")
    for content in ("{", "[]", "\0"):
        with pytest.raises(FormatError, match="does not describe a device"):
            EdgeDevice.load(write(tmp_path, content))
    with pytest.raises(FormatError, match="memory"):
        EdgeDevice.load(write(tmp_path, {k: v for k, v in GOOD.items() if k != "memory"}))
