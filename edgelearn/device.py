"""Devices as data, without OpenCL objects: a device, its kind, the units that multiply small numbers, and the traits
that kernels are chosen by.

Kinds of devices share tuned kernel configurations. A unit is chosen by what a device was found to compute, never by its
name: `runtime/devices.py` compiles and runs each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Unit:
    """One way to multiply small numbers.

    Arguments:
    - `name`: what users see, and the macro UNIT of the kernels that use it.
    - `types`: what it multiplies: "int8", or compute types (see ops/compute.py).
    - `kinds`: kinds of devices that may have it: "cpu", "gpu", "accelerator".
    - `probe`: the kernel in kernels/units.cl that multiplies with it.
    - `extension`: the OpenCL extension that it takes (default none).
    - `int8_steps`: time of a training step of ResNet-18 in int8 over that in float32, the least and the most that were
      measured where it is the fastest unit (default none; see docs/results/precision.md and speed.md).
    """

    name: str
    types: tuple[str, ...]
    kinds: tuple[str, ...]
    probe: str
    extension: str = ""
    int8_steps: tuple[float, ...] = ()


QUADS = "add_quads_of_blocks"  # see kernels/include/quads.h
TILES = "add_products_of_tiles"  # see kernels/include/matrix_units.h
WARPGROUPS = "add_products_of_warpgroups"  # see kernels/include/warpgroups.h

UNITS = (  # the fastest first
    Unit("WGMMA", ("bf16", "fp16", "tf32"), ("gpu",), WARPGROUPS),
    Unit("MMA", ("bf16", "fp16", "tf32", "int8"), ("gpu",), TILES, int8_steps=(0.37,)),
    Unit("VNNI512", ("int8",), ("cpu",), QUADS, int8_steps=(0.56,)),
    Unit("AVX512BW", ("int8",), ("cpu",), QUADS, int8_steps=(1.19,)),
    Unit("AVX2", ("int8",), ("cpu",), QUADS, int8_steps=(0.99, 1.50)),
    Unit("INTEGER_DOT", ("int8",), ("cpu", "gpu", "accelerator"), QUADS, "cl_khr_integer_dot_product"),
    Unit("QCOM_DOT", ("int8",), ("gpu",), QUADS, "cl_qcom_dot_product8"),
    # Plain C in place of matrix units, for tests: no device is found to have it
    Unit("PLAIN_MMA", (), (), TILES),
    Unit("PLAIN_WGMMA", ("bf16", "fp16", "tf32"), (), WARPGROUPS),
)


def first_of(found: tuple[str, ...], dtype: str) -> str:
    """The fastest unit of those `found` that multiplies `dtype`; "" if there is none."""
    return next((unit.name for unit in UNITS if unit.name in found and dtype in unit.types), "")


def int8_speed(found: tuple[str, ...]) -> str:
    """A sentence on the time of int8 training next to float32's, with the fastest unit of those `found`."""
    unit = next((unit for unit in UNITS if unit.name in found and "int8" in unit.types), None)
    if unit is None:
        return "int8 saves memory and no time on this device: no unit of it multiplies 8-bit integers."
    if not unit.int8_steps:
        return (
            f"int8 saves memory; whether it saves time with {unit.name} is not known: `edgelearn precision time` "
            f"measures it."
        )
    least, most = min(unit.int8_steps), max(unit.int8_steps)
    if most < 0.95:
        verdict = "is faster than float32"
    elif least > 1.05:
        verdict = "saves memory and is slower than float32"
    else:
        verdict = "saves memory and is as fast as float32" + (" or slower" if most > 1.05 else "")
    steps = " to ".join(f"{step:.2f}" for step in dict.fromkeys((least, most)))
    processors = ", by processor" if least < most else ""
    return f"int8 {verdict} with {unit.name}: steps of ResNet-18 took {steps} of the time{processors}."


def with_probe(probe: str) -> tuple[str, ...]:
    """The units that `probe` tests."""
    return tuple(unit.name for unit in UNITS if unit.probe == probe)


def first_with(probe: str, found: tuple[str, ...]) -> str:
    """The fastest unit of those `found` that `probe` tests; "" if there is none."""
    return next((name for name in with_probe(probe) if name in found), "")


KernelConfig = dict[str, int]  # sizes of tiles and the like, by name


@dataclass(frozen=True, eq=False, repr=False)
class Device:
    """One OpenCL device, as facts. It holds no OpenCL object: `runtime.driver.opencl_device` gives that.

    Arguments:
    - `name`, `platform`, `vendor`, `driver`, `version`: texts that OpenCL reports.
    - `kind`: "cpu", "gpu" or "accelerator".
    - `memory`, `largest_buffer`, `local_memory`: bytes.
    - `compute_units`: cores of a CPU, multiprocessors of a GPU.
    - `clock_mhz`: highest clock rate, in MHz.
    - `alignment`: of buffers, in bytes.
    - `vector_width`: floats of a vector register.
    - `extensions`: names of OpenCL extensions.
    - `notes`: remedies applied to the driver, a sentence each (default none).
    - `architecture`: instruction set of a CPU, compute capability of an NVIDIA GPU, else the name (default "").
    - `index`: (number of the platform, number of the device there).
    - `probe`: finds its `units` by trying them, at the first use (default: it has none).
    - `find_tuned`: finds the configurations measured to be fastest on its kind (default: none are known).
    """

    name: str
    platform: str
    vendor: str
    driver: str
    version: str
    kind: str
    memory: int
    largest_buffer: int
    local_memory: int
    compute_units: int
    clock_mhz: int
    alignment: int
    vector_width: int
    extensions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    architecture: str = ""
    index: tuple[int, int] = (0, 0)
    probe: Callable[[Device], tuple[str, ...]] | None = None
    find_tuned: Callable[[Device], Mapping[str, KernelConfig]] | None = None

    def __repr__(self) -> str:
        return f"<Device {self.id}: {self.kind.upper()}, compute units: {self.compute_units}>"

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

    @cached_property
    def id(self) -> str:
        """Name under which runs record the device."""
        return f"{self.platform} / {self.name}"

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Names of the units for small numbers that it was found to have, fastest first: see `UNITS`."""
        return self.probe(self) if self.probe else ()

    @property
    def int8_speed(self) -> str:
        """A sentence on the time of int8 training on this device next to float32's."""
        return int8_speed(self.units)

    def facts(self) -> dict:
        """Properties that a run records, as JSON values."""
        keys = ("name", "platform", "vendor", "driver", "version", "kind", "memory", "compute_units", "notes")
        return {key: getattr(self, key) for key in keys}


REACH = 4  # results apply to devices with up to 4 times as many compute units, or as few as a quarter


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device, whose members share tuning results.

    Arguments:
    - `platform`: the OpenCL platform.
    - `kind`: "cpu", "gpu" or "accelerator".
    - `family`: instruction set of a CPU, architecture of a GPU.
    - `vector_width`: floats in a vector register.
    - `compute_units`: number of them.
    """

    platform: str
    kind: str
    family: str
    vector_width: int
    compute_units: int

    @classmethod
    def of(cls, device: Device) -> DeviceKind:
        return cls(device.platform, device.kind, device.architecture, device.vector_width, device.compute_units)

    def distance(self, other: DeviceKind) -> float | None:
        """Ratio of compute units (at least 1), or None if results for one kind don't apply to the other."""
        mine, others = ((k.platform, k.kind, k.family, k.vector_width) for k in (self, other))
        ratio = max(self.compute_units, other.compute_units) / min(self.compute_units, other.compute_units)
        return ratio if mine == others and ratio <= REACH else None

    @property
    def slug(self) -> str:
        """File name for results of this kind, without suffix."""
        words = (
            self.platform,
            self.family,
            f"simd{self.vector_width}" if self.kind == "cpu" else "",
            self.compute_units,
        )
        return "-".join(filter(None, re.split(r"[^a-z0-9]+", " ".join(map(str, words)).lower())))

    def to_dict(self) -> dict:
        return asdict(self)


CHANNEL_BLOCK = 16  # channels of a block of the device layout (see ops/tensor.py)


@dataclass(frozen=True)
class Traits:
    """Properties of a device from which kernels and tile sizes are chosen.

    Arguments:
    - `gpu`: the device is a GPU.
    - `compute_units`: number of compute units.
    - `vector_width`: floats of a CPU's vector registers.
    - `tuned`: the configurations measured to be fastest on this kind of device, by name of the decision.
    - `find_units`: names the device's units for small numbers (default: it has none).
    - `bare`: a processor without an operating system, whose constants lie where programs don't write, such as flash.
      What derives from frozen kernels alone is a constant too, which the host computes; inputs share memory with
      activations; one core takes all statistics of a tensor.
    """

    gpu: bool = False
    compute_units: int = 2
    vector_width: int = 16
    tuned: Mapping[str, KernelConfig] = field(default_factory=dict, compare=False)
    find_units: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)
    bare: bool = False

    @property
    def group(self) -> int:
        """Default work-group size along the first dimension."""
        return 64 if self.gpu else 1

    @property
    def vector(self) -> int:
        """Channels per work-item, in kernels that don't combine channels."""
        return 4 if self.gpu else CHANNEL_BLOCK

    @property
    def members(self) -> int:
        """Work-items of a work-group that handle the same channels and can share a sum."""
        return self.group * self.vector // CHANNEL_BLOCK

    def unit(self, dtype: str) -> str:
        """The fastest unit that multiplies `dtype`, such as "int8"; "" if the device has none."""
        return first_of(self.find_units(), dtype)

    @property
    def quads(self) -> str:
        """The fastest unit that adds up four products of 8-bit integers; "" if the device has none."""
        return first_with(QUADS, self.find_units())

    @property
    def matrix_unit(self) -> str:
        """The fastest unit that multiplies small matrices; "" if the device has none."""
        return first_with(TILES, self.find_units())

    @classmethod
    def of(cls, device: Device) -> Traits:
        """The traits of `device`. Raises FormatError for a damaged file of tuning results."""
        tuned = device.find_tuned(device) if device.find_tuned else {}
        return cls(device.is_gpu, device.compute_units, device.vector_width, tuned, lambda: device.units)
