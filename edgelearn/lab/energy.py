"""Energy of a device: its counter of joules, read before and after a loop that is long enough.

A counter counts all that its part of the machine takes, whoever uses it. Nothing is subtracted: the power of an idle
device is measured and stated by itself. A device without a counter has a meter that says why nothing is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from edgelearn.device import Device
from edgelearn.errors import EdgelearnError

SYS = Path("/sys")
NOT_MEASURED = "not measured"
LOOP, IDLE = 2.0, 0.5  # seconds of a loop of steps, and without work
_TICK = 0.25  # seconds between two updates of NVML's counter, at most
_SENSOR, _WRAPS = 0.02, 30.0  # seconds between readings: of a sensor of power, and of a counter that wraps around


class CounterError(EdgelearnError):
    """Nothing can be counted; the message says why."""


class Counter(Protocol):
    """A counter of energy.

    - `source`: what is counted, and by whom.
    - `every`: seconds within which it must be read again (None: any).
    - `tick`: seconds between its updates, at most (0: none worth waiting for).
    """

    source: str

    @property
    def every(self) -> float | None: ...

    @property
    def tick(self) -> float: ...

    def read(self) -> float:
        """Joules since any moment in the past. Raises CounterError."""
        ...


@dataclass(frozen=True)
class Energy:
    """Energy of a loop of steps, by a device's counter; nothing is subtracted.

    Arguments:
    - `joules`: of a step, the mean.
    - `watts`: mean power of the loop.
    - `seconds`, `steps`: length of the loop.
    """

    joules: float
    watts: float
    seconds: float
    steps: int


class Meter:
    """Energy meter of a device. Open as a context manager, it reads its counter as often as that needs.

    Arguments:
    - `counter`: the device's (None: it has none).
    - `reason`: why it has none.
    """

    def __init__(self, counter: Counter | None, reason: str = "") -> None:
        self._counter, self.reason = counter, reason
        self._reading, self._ended, self._opened = threading.Lock(), threading.Event(), 0
        self._idle: float | None = None

    def __str__(self) -> str:
        return f"{NOT_MEASURED}: {self.reason}" if self._counter is None else self._counter.source

    def __enter__(self) -> Self:
        self._opened += 1
        if self._opened == 1 and self._counter is not None and self._counter.every is not None:
            self._ended = threading.Event()
            threading.Thread(target=self._poll, args=(self._counter.every, self._ended), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened -= 1
        if not self._opened:
            self._ended.set()

    def _poll(self, seconds: float, ended: threading.Event) -> None:
        while not ended.wait(seconds) and self.read() is not None:
            pass

    @property
    def measures(self) -> bool:
        """True if the device has a counter."""
        return self._counter is not None

    def read(self) -> float | None:
        """Joules since any moment in the past; None if nothing is measured. A counter that fails is given up."""
        with self._reading:
            if self._counter is None:
                return None
            try:
                return self._counter.read()
            except CounterError as error:
                self._counter, self.reason = None, str(error)
                return None

    def over(self, work: Callable[[], int]) -> Energy | None:
        """Energy of `work`, which returns its number of steps; None if nothing is measured, or after no step. The
        loop lasts from one update of the counter to another: at most an update's time without work counts as well."""
        before = self._edge()
        begin = time.perf_counter()
        steps = work()
        after = self._edge()
        seconds = time.perf_counter() - begin
        if before is None or after is None or not steps:
            return None
        return Energy((after - before) / steps, (after - before) / seconds, seconds, steps)

    def of_steps(self, step: Callable[[], Any], seconds: float = LOOP) -> Energy | None:
        """Energy of a step, of as many in a row as last `seconds`; runs none if nothing is measured."""
        if not self.measures:
            return None

        def work() -> int:
            end, count = time.perf_counter() + seconds, 0
            while not count or time.perf_counter() < end:
                step()
                count += 1
            return count

        step()
        return self.over(work)

    def idle(self, seconds: float = IDLE) -> float | None:
        """Watts of the device while this process asks nothing of it, measured once; None if nothing is measured."""
        if self._idle is None and self.measures:

            def wait() -> int:
                time.sleep(seconds)
                return 1

            found = self.over(wait)
            self._idle = found.watts if found else None
        return self._idle

    def to_dict(self) -> dict[str, Any]:
        """JSON values: `source` or the reason why there is none, and `idle_watts` if they were measured."""
        return {"source": str(self)} | ({} if self._idle is None else {"idle_watts": self._idle})

    def _edge(self) -> float | None:
        """A reading; of a counter that ticks, the first after its next update."""
        found = begin = self.read()
        tick = self._counter.tick if self._counter is not None else 0.0
        end = time.perf_counter() + tick
        while found == begin and found is not None and time.perf_counter() < end:
            time.sleep(0.001)
            found = self.read()
        return found


def find_meter(device: Device) -> Meter:
    """The meter of a device: NVML's of an NVIDIA GPU, RAPL's of the processor, a Jetson's of the module."""
    if device.is_gpu and "nvidia" in device.id.lower():
        finders: Sequence[Callable[[], Counter]] = (lambda: nvml_counter(device), jetson_counter)
    elif device.is_gpu:
        finders = (lambda: _unknown(device), jetson_counter)
    else:
        finders = (rapl_counter, jetson_counter)
    reason = ""
    for find in finders:
        try:
            return Meter(find())
        except CounterError as error:
            reason = str(error) or reason
    return Meter(None, reason)


def _unknown(device: Device) -> Counter:
    raise CounterError(f"no counter of {device.name} is known")


# -- counters ----------------------------------------------------------------------------------------------------------


class Rapl:
    """Intel's and AMD's RAPL through Linux's powercap: processor packages, and memory where it is a zone of its own.

    Arguments:
    - `zones`: their folders in /sys/class/powercap.

    The zones' counters begin anew at their `max_energy_range_uj`, which shows as long as each is read once in between.
    """

    every, tick = _WRAPS, 0.0

    def __init__(self, zones: Sequence[Path]) -> None:
        self._zones, self._joules = zones, 0.0
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._last = [_number(zone / "energy_uj") for zone in zones]
        names = ", ".join(dict.fromkeys((zone / "name").read_text().strip() for zone in zones))
        self.source = f"RAPL: {names} (the whole processor, whoever uses it)"

    def read(self) -> float:
        now = [_number(zone / "energy_uj") for zone in self._zones]
        for new, old, most in zip(now, self._last, self._ranges, strict=True):
            self._joules += (new - old + (most if new < old else 0)) / 1e6
        self._last = now
        return self._joules


class Sensor:
    """A sensor of power, integrated over the time between readings by the trapezoidal rule.

    Arguments:
    - `watts`: reads the power.
    - `source`: of what, and by whom.
    - `clock`: tells seconds (default: the system's).
    """

    every, tick = _SENSOR, 0.0

    def __init__(self, watts: Callable[[], float], source: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._watts, self._clock, self.source = watts, clock, f"{source}, power integrated"
        self._joules, self._last, self._at = 0.0, watts(), clock()

    def read(self) -> float:
        power, now = self._watts(), self._clock()
        self._joules += (power + self._last) / 2 * (now - self._at)
        self._last, self._at = power, now
        return self._joules


class NvmlEnergy:
    """NVML's counter of the energy of a GPU since its driver started (Volta and later).

    Arguments:
    - `millijoules`: reads it.
    - `source`: of what.
    """

    every, tick = None, _TICK

    def __init__(self, millijoules: Callable[[], int], source: str) -> None:
        self._millijoules, self.source = millijoules, source
        millijoules()

    def read(self) -> float:
        return self._millijoules() / 1e3


def rapl_counter() -> Rapl:
    """RAPL's counter of this machine. Raises CounterError where it has none, or one for root alone."""
    folder = SYS / "class" / "powercap"
    zones = []
    for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's too; "intel-rapl-mmio" counts the same again
        name = _text(zone / "name")
        if name.startswith("package") or name == "dram":  # a package holds its cores; psys holds packages
            zones.append(zone)
    if not zones:
        raise CounterError(f"there is no RAPL in {folder}, as in virtual machines")
    return Rapl(zones)


def jetson_counter() -> Sensor:
    """The sensor of a Jetson module's input, by its INA3221. Raises CounterError where there is none, with no reason on
    other machines."""
    rails = []
    for label in sorted(SYS.glob("bus/i2c/drivers/ina3221/*/hwmon/hwmon*/in[123]_label")):
        if (name := _text(label)) == "VDD_IN":
            return Sensor(partial(_watts, label.parent, label.name[2]), "INA3221: VDD_IN (the whole Jetson module)")
        rails.append(name)
    raise CounterError(f"of the rails {', '.join(rails)} none is the whole module's VDD_IN" if rails else "")


def nvml_counter(device: Device) -> Counter:
    """NVML's counter of a GPU, or its sensor of power. Raises CounterError without the package, the library, or for a
    GPU that can't be told from others."""
    try:
        import pynvml as nvml
    except ImportError:
        raise CounterError("NVML needs the package nvidia-ml-py: pip install 'edgelearn[energy]'") from None

    def asked(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError as error:
            raise CounterError(f"{name} of NVML: {error}") from None

    asked("nvmlInit")
    found = [asked("nvmlDeviceGetHandleByIndex", number) for number in range(asked("nvmlDeviceGetCount"))]
    if len(found) > 1:
        place = _pci_place(device)
        found = [each for each in found if place in (None, _place(asked("nvmlDeviceGetPciInfo", each)))]
    if len(found) != 1:
        raise CounterError(f"NVML has {len(found)} GPUs that may be {device.name}")
    (gpu,) = found
    source = f"NVML: {device.name} (the whole board)"
    try:
        return NvmlEnergy(lambda: asked("nvmlDeviceGetTotalEnergyConsumption", gpu), source)
    except CounterError:  # older than Volta
        return Sensor(lambda: asked("nvmlDeviceGetPowerUsage", gpu) / 1e3, source)


def _place(info: Any) -> tuple[int, int, int]:
    """(domain, bus, device) of NVML's PCI information."""
    return info.domain, info.bus, info.device


def _pci_place(device: Device) -> tuple[int, int, int] | None:
    """(domain, bus, device) of an OpenCL device on the PCI bus; None if its driver doesn't tell."""
    import pyopencl as cl

    from edgelearn.runtime.driver import opencl_device

    try:
        known = opencl_device(device)
        return known.pci_domain_id_nv, known.pci_bus_id_nv, known.pci_slot_id_nv
    except (cl.Error, AttributeError):
        return None


def _watts(folder: Path, channel: str) -> float:
    """Power of a channel of an INA3221, which Linux gives as mV and mA."""
    return _number(folder / f"in{channel}_input") * _number(folder / f"curr{channel}_input") / 1e6


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    """The number in a file of /sys. Raises CounterError."""
    try:
        return int(path.read_text())
    except PermissionError:
        raise CounterError(f"{path} is readable for root alone: sudo chmod a+r {path}") from None
    except (OSError, ValueError) as error:
        raise CounterError(f"{path} can't be read: {error}") from None
