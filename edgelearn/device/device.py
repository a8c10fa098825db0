"""Properties of a device that plans and tuned kernel configurations depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Device:
    """Properties of one OpenCL device; `runtime.platforms.opencl_device` returns the OpenCL object.

    Arguments:
    - `kind`: "cpu", "gpu" or "accelerator".
    - `memory`, `largest_buffer`, `local_memory`, `alignment`: in bytes.
    - `vector_width`: floats in a vector register.
    - `notes`: remedies applied to the driver (see runtime/faults.py), a sentence each.
    - `architecture`: instruction set of a CPU, compute capability of an NVIDIA GPU, otherwise the name.
    - `index`: (number of the platform, number of the device in it).
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
