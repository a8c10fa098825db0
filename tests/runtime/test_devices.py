import gc
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest

from edgelearn.device import UNITS, Traits, Unit, first_of, int8_speed
from edgelearn.errors import DeviceError
from edgelearn.runtime import Context, choose_device, devices, kernels, list_devices
from edgelearn.runtime.devices import _architecture, rank

REMEDY = r"pip install 'pyopencl\[pocl\]'"


@pytest.fixture
def real():
    return list_devices()[0]


@pytest.fixture
def several(monkeypatch, real):
    """A laptop, as `choose_device` sees it."""
    cpu = replace(real, name="Core i7", platform="PoCL", kind="cpu", compute_units=16, clock_mhz=4000, memory=32 << 30)
    small = replace(cpu, name="Iris Xe", platform="Intel", kind="gpu", compute_units=96, clock_mhz=1300)
    large = replace(cpu, name="RTX 4070", platform="NVIDIA", kind="gpu", compute_units=36, clock_mhz=5000)
    chip = replace(cpu, name="NPU", platform="Intel", kind="accelerator", compute_units=2)
    devices = [cpu, chip, small, large]
    monkeypatch.setattr("edgelearn.runtime.devices.list_devices", lambda: devices)
    return devices


class TestList:
    def test_facts(self):
        for device in list_devices():
            assert device.kind in ("cpu", "gpu", "accelerator")
            assert device.memory > 0 and 0 < device.largest_buffer <= device.memory
            assert device.alignment >= 64 and device.alignment % 64 == 0
            assert device.id == f"{device.platform} / {device.name}"
            assert device.facts()["name"] == device.name and "handle" not in device.facts()

    def test_no_opencl_library(self, monkeypatch):
        """import pyopencl fails where nothing gives it an OpenCL library."""
        import sys

        monkeypatch.setitem(sys.modules, "pyopencl", None)
        with pytest.raises(DeviceError, match=REMEDY):
            list_devices()

    def test_no_platform(self, monkeypatch):
        def refuse():
            raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

        monkeypatch.setattr(cl, "get_platforms", refuse)
        with pytest.raises(DeviceError, match=f"(?s){REMEDY}.*PLATFORM_NOT_FOUND"):
            choose_device()

    @pytest.mark.parametrize("names", [(), ("NVIDIA CUDA", "Intel")])
    def test_platforms_without_devices(self, monkeypatch, names):
        class Empty:
            def __init__(self, name):
                self.name = name

            def get_devices(self):
                raise cl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")

        monkeypatch.setattr(cl, "get_platforms", lambda: [Empty(name) for name in names])
        with pytest.raises(DeviceError, match=f"(?s){', '.join(names) or 'none'}.*{REMEDY}"):
            list_devices()


class TestChoice:
    def test_best_first(self, several):
        cpu, chip, small, large = several
        assert rank(several) == [large, small, chip, cpu]
        choice = choose_device()
        assert choice.device is large and choice.others == (small, chip, cpu)
        assert "best of 4" in choice.reason and "GPU" in choice.reason and "36 compute units" in choice.reason

    def test_the_newest_pocl(self, real):
        old, new, latest = (
            replace(real, kind="cpu", platform="Portable Computing Language", driver=driver, clock_mhz=clock)
            for driver, clock in (("3.0", 5000), ("6.0-rc1", 4000), ("6.1", 3000))
        )
        other = replace(old, platform="Intel(R) OpenCL", clock_mhz=3500)
        assert rank([old, other, new, latest]) == [other, latest, old, new]

    def test_the_only_one(self, several):
        del several[1:]
        choice = choose_device()
        assert choice.device is several[0] and "the only device" in choice.reason and choice.others == ()

    @pytest.mark.parametrize(
        ("name", "which"), [("rtx", 3), ("RTX 4070", 3), ("nvidia", 3), ("pocl / core", 0), ("iris", 2), ("npu", 1)]
    )
    def test_by_part_of_the_name(self, several, name, which):
        choice = choose_device(name)
        assert choice.device is several[which] and name in choice.reason
        assert len(choice.others) == 3 and choice.device not in choice.others

    def test_exact_names_win(self, several):
        several.append(replace(several[3], name="RTX 4070 Ti"))
        assert choose_device("rtx 4070").device is several[3]

    def test_twins(self, several):
        several.append(replace(several[3]))
        assert choose_device("rtx").device is several[3]

    def test_unknown(self, several):
        with pytest.raises(DeviceError, match=r"'Mali'.*NVIDIA / RTX 4070; Intel / Iris Xe"):
            choose_device("Mali")

    def test_ambiguous(self, several):
        with pytest.raises(DeviceError, match=r"'intel'.*Intel / Iris Xe; Intel / NPU"):
            choose_device("intel")

    def test_given(self, real):
        choice = choose_device(real)
        assert choice.device is real and "caller" in choice.reason


class TestMemory:
    @pytest.mark.parametrize("nbytes", [1 << 20, 5 << 20, (6 << 20) + 4])
    def test_holds_what_is_written(self, nbytes):
        """Also where a CPU gets memory in huge pages, and outlives the name that it had here."""
        for device in list_devices():
            context = Context(device)
            memory = context.allocate(nbytes, "a")
            values = np.arange(nbytes // 4, dtype=np.float32)
            context.write(memory.handle, values)
            gc.collect()
            assert np.array_equal(context.read(memory.handle, np.empty_like(values)), values)
            memory.release()
            assert context.ledger.held == 0

    def test_ledger(self, real):
        context = Context(real)
        a, b = context.allocate(1000, "a"), context.allocate(500, "b")
        assert (context.ledger.held, context.ledger.peak) == (1500, 1500)
        a.release()
        a.release()
        assert (context.ledger.held, context.ledger.peak) == (500, 1500)
        del b
        assert context.ledger.held == 0

    def test_refused(self, real):
        context = Context(real)
        with pytest.raises(DeviceError, match="'whale'"):
            context.allocate(1 << 60, "whale")
        assert context.ledger.held == 0

    def test_copies(self, real):
        context = Context(real)
        buffer = context.allocate(64, "a")
        context.fill_zero(buffer.handle, 64)
        context.write(buffer.handle, np.arange(4, dtype=np.float32), offset=16)
        found = context.read(buffer.handle, np.empty(16, np.float32))
        assert found.tolist() == [0] * 4 + [0, 1, 2, 3] + [0] * 8


def test_architecture_of_a_gpu():
    nvidia = SimpleNamespace(compute_capability_major_nv=9, compute_capability_minor_nv=0, name="NVIDIA H200")
    assert _architecture(nvidia, "gpu") == "compute capability 9.0"
    assert _architecture(SimpleNamespace(name="gfx90a "), "gpu") == "gfx90a"


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
        (("AVX2",), "as fast as float32 or slower with AVX2: steps of ResNet-18 took 0.99 to 1.50 of the time, by"),
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


def test_devices_show_themselves_in_a_line_and_a_choice_as_a_table():
    choice = choose_device()
    assert repr(choice).startswith(f"<DeviceChoice of {choice.device.id}, ") and len(repr(choice.device)) < 200
    assert choice._repr_html_().count("<tr>") == 2 + len(choice.others)
