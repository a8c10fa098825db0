"""Properties of a device that plans and tuned kernel configurations depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Device:
    """One OpenCL device, as facts. It holds no OpenCL object: `runtime.platforms.opencl_device` gives that.

    Sizes in bytes. `kind` is "cpu", "gpu" or "accelerator"; `vector_width` the floats of a vector register;
    `architecture` the instruction set of a CPU, the compute capability of an NVIDIA GPU, else the name; `index` its
    place: (number of the platform, number of the device there).
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
