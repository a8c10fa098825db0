"""Properties of a device that plans and tuned kernel configurations depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Device:
    """One OpenCL device, as facts. It holds no OpenCL object: `runtime.platforms.opencl_device` gives that.

    Arguments:
    - `name`, `platform`, `vendor`, `driver`, `version`: texts that OpenCL reports.
    - `kind`: "cpu", "gpu" or "accelerator".
    - `memory`, `largest_buffer`, `local_memory`: bytes.
    - `compute_units`: cores of a CPU, multiprocessors of a GPU.
    - `clock_mhz`: highest clock rate, in MHz.
    - `alignment`: of buffers, in bytes.
    - `vector_width`: floats of a vector register.
    - `extensions`: names of OpenCL extensions.
    - `notes`: what was done to use the device, for its user (default none).
    - `architecture`: instruction set of a CPU, compute capability of an NVIDIA GPU, else the name (default "").
    - `index`: (number of the platform, number of the device there).
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

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

    @cached_property
    def id(self) -> str:
        """Name under which runs record the device."""
        return f"{self.platform} / {self.name}"

    def facts(self) -> dict:
        """Properties that a run records, as JSON values."""
        keys = ("name", "platform", "vendor", "driver", "version", "kind", "memory", "compute_units", "notes")
        return {key: getattr(self, key) for key in keys}
