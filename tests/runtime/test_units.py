import json

import pytest

from edgelearn.device import UNITS, Unit, first_of, int8_speed
from edgelearn.runtime import Context, devices, kernels, list_devices
from edgelearn.tuned import Traits

DEVICES = list_devices()
PLAIN = (
    Unit("PLAIN_QUADS", ("int8",), ("cpu", "gpu"), "add_quads_of_blocks"),
    Unit("PLAIN_MMA", ("bf16", "fp16", "tf32", "int8"), ("cpu", "gpu"), "add_products_of_tiles"),
)


@pytest.fixture(params=DEVICES, ids=[device.id for device in DEVICES])
def device(request):
    return request.param


def test_units_give_the_integers_that_plain_c_gives(device):
    for unit in (*PLAIN, *(unit for unit in UNITS if unit.name in device.units)):
        for found, expected in devices.PROBES[unit.probe](Context(device), unit):
            assert (found == expected).all(), unit.name
    assert Traits.of(device).unit("int8") == first_of(device.units, "int8")


def test_the_answer_is_kept(device, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(devices, "computes", lambda device, unit: unit is UNITS[1])
    kinds = [unit.name for unit in UNITS[1:2] if device.kind in unit.kinds]
    assert list(devices.find_units(device)) == kinds
    (path,) = tmp_path.glob("units-*.json")
    assert json.loads(path.read_text()) == kinds
    monkeypatch.setattr(devices, "computes", None)
    assert list(devices.find_units(device)) == kinds


def test_a_damaged_answer_is_made_again(device, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(devices, "computes", lambda device, unit: False)
    assert devices.find_units(device) == ()
    (path,) = tmp_path.glob("units-*.json")
    path.write_text("{")
    assert devices.find_units(device) == ()
    assert path.read_text() == "[]"


def test_a_unit_that_miscalculates_or_does_not_compile_is_not_found(device, monkeypatch):
    read = kernels.read_source
    assert devices.computes(device, PLAIN[0])
    monkeypatch.setattr(
        kernels, "read_source", lambda name, kernel: read(name, kernel).replace("sum += ", "sum += 1 + ")
    )
    assert not devices.computes(device, PLAIN[0])
    monkeypatch.setattr(kernels, "read_source", lambda name, kernel: "nonsense")
    assert not devices.computes(device, PLAIN[0])


def test_the_first_of_a_type():
    assert first_of((), "int8") == ""
    assert first_of(("AVX2", "VNNI512"), "int8") == "VNNI512"
    assert first_of(("AVX2",), "bf16") == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (("VNNI512", "AVX512BW", "AVX2"), "int8 is faster than float32 with VNNI512: steps of ResNet-18 took 0.56"),
        (("WGMMA", "MMA"), "int8 is faster than float32 with MMA"),
        (("AVX512BW", "AVX2"), "slower than float32 with AVX512BW"),
        (("AVX2",), "slower than float32 with AVX2: steps of ResNet-18 took 1.22"),
        (("INTEGER_DOT",), "with INTEGER_DOT is not known"),
        ((), "no unit"),
    ],
)
def test_the_time_of_int8_is_told_by_the_fastest_unit(found, words):
    assert words in int8_speed(found)


def test_a_plan_in_integers_tells_their_time(device):
    from edgelearn.compile import Request, make_plan
    from edgelearn.compile.precision import named_precision
    from edgelearn.graph import Network
    from edgelearn.ops import Dense

    net = Network("tiny", (4,))
    net.add("dense", Dense(3))
    plans = {name: str(make_plan(Request(net, precision=named_precision(name)), device)) for name in ("fp32", "int8")}
    assert device.int8_speed in plans["int8"] and device.int8_speed not in plans["fp32"]
