"""Energy counters, by fake ones: RAPL's folders, NVML's module, a Jetson's sensor; loops, wrap-around, refusals."""

import sys
import time
from itertools import count
from types import SimpleNamespace

import pytest

import edgelearn as el
from edgelearn.device import Device
from edgelearn.lab import energy, profile
from edgelearn.lab.energy import CounterError, Meter, NvmlEnergy, Sensor, find_meter
from edgelearn.lab.profile import roofline
from edgelearn.ops import Dense

GPU = SimpleNamespace(id="NVIDIA CUDA / NVIDIA H100", name="NVIDIA H100", is_gpu=True)
CPU = SimpleNamespace(id="Portable Computing Language / pthread", name="pthread", is_gpu=False)


class Watts:
    """A counter that counts so many joules a second."""

    every, tick, source = None, 0.0, "a fake"

    def __init__(self, watts=10.0):
        self.watts = watts

    def read(self):
        return self.watts * time.perf_counter()


@pytest.fixture(autouse=True)
def sys_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "SYS", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return tmp_path


def zone(root, place, name, microjoules, most=1_000_000):
    folder = root / "class" / "powercap" / place
    folder.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{text}\n")
    return folder / "energy_uj"


def test_rapl_adds_up_packages_and_memory(sys_folder):
    package = zone(sys_folder, "intel-rapl:0", "package-0", 900_000)
    memory = zone(sys_folder, "intel-rapl:0:1", "dram", 0)
    others = ("intel-rapl:0:0", "core"), ("intel-rapl:1", "psys"), ("intel-rapl-mmio:0", "package-0")
    counted_already = [zone(sys_folder, place, name, 5) for place, name in others]
    meter = find_meter(CPU)
    assert meter.measures and meter.read() == 0 and str(meter).startswith("RAPL: package-0, dram")
    for file in counted_already:
        file.write_text("700000\n")
    memory.write_text("250000\n")
    assert meter.read() == pytest.approx(0.25)
    package.write_text("100000\n")  # it began anew at 1,000,000
    assert meter.read() == pytest.approx(0.45)
    package.write_text("?")
    assert meter.read() is None and not meter.measures and "energy_uj can't be read" in str(meter)


def test_the_reason_why_nothing_is_measured(sys_folder, monkeypatch):
    assert (
        str(find_meter(CPU)) == f"not measured: there is no RAPL in {sys_folder}/class/powercap, as in virtual machines"
    )
    assert "nvidia-ml-py" in str(find_meter(GPU))
    other = SimpleNamespace(id="Intel / Arc", name="Arc", is_gpu=True)
    assert str(find_meter(other)) == "not measured: no counter of Arc is known"
    meter = find_meter(CPU)
    with meter:
        assert meter.read() is meter.idle() is meter.of_steps(lambda: 1 / 0) is meter.over(lambda: 1) is None
    zone(sys_folder, "intel-rapl:0", "package-0", 0)

    def refuse(self, *_):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(CounterError, match="root alone: sudo chmod"):
        energy._number(sys_folder)


def test_a_jetson_tells_the_power_of_its_module(sys_folder):
    folder = sys_folder / "bus" / "i2c" / "drivers" / "ina3221" / "1-0040" / "hwmon" / "hwmon3"
    folder.mkdir(parents=True)
    (folder / "in1_label").write_text("VDD_CPU\n")
    assert "VDD_CPU none is the whole module" in str(find_meter(CPU))
    for file, text in (("in2_label", "VDD_IN"), ("in2_input", "5000"), ("curr2_input", "1600")):
        (folder / file).write_text(f"{text}\n")
    meter = find_meter(CPU)
    assert str(meter) == "INA3221: VDD_IN (the whole Jetson module), power integrated"
    assert meter._counter._watts() == 8.0


def test_power_is_integrated_by_trapezoids():
    watts, clock = iter([10.0, 30.0, 30.0]), iter([0.0, 2.0, 2.5])
    sensor = Sensor(lambda: next(watts), "a board", lambda: next(clock))
    assert sensor.read() == 40.0 and sensor.read() == 55.0


class Nvml(SimpleNamespace):
    """A module with two GPUs on buses 1 and 2, whose counters of energy stand at 1000 and 2000 mJ."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus=2, energy=True):
        place = [SimpleNamespace(domain=0, bus=bus, device=0) for bus in (1, 2)]
        super().__init__(
            nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: gpus, nvmlDeviceGetHandleByIndex=lambda number: number,
            nvmlDeviceGetPciInfo=place.__getitem__, nvmlDeviceGetPowerUsage=lambda number: 300_000,
            nvmlDeviceGetTotalEnergyConsumption=lambda number: 1000 * (number + 1) if energy else self.refuse(),
        )  # fmt: skip

    def refuse(self):
        raise self.NVMLError("Not Supported")


def test_nvml_finds_the_gpu_by_its_place(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(1))
    meter = find_meter(GPU)
    assert meter.read() == 1.0 and str(meter) == "NVML: NVIDIA H100 (the whole board)"
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.setattr(energy, "_pci_place", lambda device: (0, 2, 0))
    assert find_meter(GPU).read() == 2.0
    monkeypatch.setattr(energy, "_pci_place", lambda device: None)
    assert str(find_meter(GPU)) == "not measured: NVML has 2 GPUs that may be NVIDIA H100"
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(1, energy=False))
    older = find_meter(GPU)
    assert str(older).endswith("power integrated") and older._counter._watts() == 300.0
    broken = Nvml(1)
    broken.nvmlInit = broken.refuse
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert str(find_meter(GPU)) == "not measured: nvmlInit of NVML: Not Supported"


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on while somebody sleeps."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)

    def sleep(seconds):
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr(energy, "time", clock)
    return clock


def test_a_loop_lasts_from_update_to_update(clock):
    """A counter of 5 W that is updated every 50 ms: a loop that ends in between is counted to its end."""
    meter = Meter(NvmlEnergy(lambda: round(250 * (clock.now // 0.05)), "a fake"))
    clock.now = 0.02
    found = meter.of_steps(lambda: clock.sleep(0.012), 0.13)
    assert found.steps == 11 and found.seconds == pytest.approx(0.15, abs=0.002)
    assert found.watts == pytest.approx(5, rel=0.02) and found.joules == pytest.approx(0.75 / 11)
    assert meter.over(lambda: 0) is None


def test_an_open_meter_is_read_as_often_as_it_needs():
    """Between two readings the counter begins anew once, which shows because the meter reads it in between."""
    numbers = count()
    counter = SimpleNamespace(source="", every=0.005, tick=0.0, read=lambda: float(next(numbers)))
    meter = Meter(counter)
    with meter, meter:
        time.sleep(0.1)
    read = next(numbers)
    assert read > 4
    time.sleep(0.03)
    assert next(numbers) <= read + 2  # nobody reads any more


def test_idle_power_is_measured_once_and_stated(clock):
    meter = Meter(SimpleNamespace(source="a fake", tick=0.0, read=lambda: 70 * clock.now))
    assert meter.to_dict() == {"source": "a fake"}
    assert meter.idle(0.02) == meter.idle() == pytest.approx(70.0)
    assert meter.to_dict() == {"source": "a fake", "idle_watts": meter.idle()}


def test_a_profile_has_the_energy_of_a_step(monkeypatch):
    monkeypatch.setattr(roofline, "find_meter", lambda device: Meter(Watts()))
    monkeypatch.setattr(Meter.of_steps, "__defaults__", (0.05,))
    monkeypatch.setattr(Meter.idle, "__defaults__", (0.01,))
    network = el.Network("tiny", (8,))
    network.add("dense", Dense(3))
    model = el.Model(network).compile(el.SGD(0.01))
    peaks = profile.Peaks(1e12, {1 << 20: 1e11}, 1e-6)
    found = profile.profile(model.plan(batch_size=2), model.device, 1, peaks=peaks)
    assert isinstance(model.device, Device)
    assert found.timing.energy.watts == pytest.approx(10, rel=0.1)
    record = profile.DeviceRecord.of([found]).to_dict()
    assert record["steps"][0]["energy"]["joules"] == found.timing.energy.joules
    assert record["energy"]["idle_watts"] == pytest.approx(10, rel=0.1)
    text = profile.roofline_table(found, 100)
    assert "J a step" in text and "not subtracted" in text and "a fake" in text
