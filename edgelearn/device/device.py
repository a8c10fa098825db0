"""Properties of a device that plans and tuned kernel configurations depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from .units import int8_speed


@dataclass(frozen=True, eq=False)
class Device:
    """One OpenCL device, as facts. It holds no OpenCL object: `runtime.handles.opencl_device` gives that.

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

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

    @cached_property
    def id(self) -> str:
        """Name under which runs record the device."""
        return f"{self.platform} / {self.name}"

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Names of the units for small numbers that it was found to have, fastest first: see `units.UNITS`."""
        return self.probe(self) if self.probe else ()

    @property
    def int8_speed(self) -> str:
        """A sentence on the time of int8 training on this device next to float32's."""
        return int8_speed(self.units)

    def facts(self) -> dict:
        """Properties that a run records, as JSON values."""
        keys = ("name", "platform", "vendor", "driver", "version", "kind", "memory", "compute_units", "notes")
        return {key: getattr(self, key) for key in keys}
