"""All devices of all OpenCL platforms, as plain facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgelearn.errors import DeviceError

from . import faults
from .workers import a_core_each

NO_RUNTIME = (
    "No OpenCL runtime was found, so there is no device to train on. Install one that runs on any CPU with:\n"
    "    pip install 'pyopencl[pocl]'"
)


@dataclass(frozen=True, eq=False)
class Device:
    """One OpenCL device. Sizes in bytes; `kind` is "cpu", "gpu" or "accelerator"."""

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
    handle: Any = field(repr=False, default=None)

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

    @cached_property
    def id(self) -> str:
        """The name by which a run remembers the device."""
        return f"{self.platform} / {self.name}"

    def facts(self) -> dict:
        """What a run records of the device (JSON-able)."""
        keys = ("name", "platform", "vendor", "driver", "version", "kind", "memory", "compute_units", "notes")
        return {key: getattr(self, key) for key in keys}


def list_devices() -> list[Device]:
    """Every OpenCL device of this machine, in the order of its platforms.

    Raises DeviceError, with the command that mends it, when there is no OpenCL runtime or no device at all.
    """
    try:
        import pyopencl as cl
    except ImportError as error:
        raise DeviceError(f"{NO_RUNTIME}\n(import pyopencl: {error})") from None
    try:
        with a_core_each():
            platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(f"{NO_RUNTIME}\n({error})") from None
    devices = []
    for platform in platforms:
        try:
            with a_core_each():
                handles = platform.get_devices()
        except cl.Error:  # a platform without devices, such as a GPU driver on a machine without the GPU
            continue
        devices += [_describe(platform, handle) for handle in handles]
    if not devices:
        names = ", ".join(p.name for p in platforms) or "none"
        raise DeviceError(f"The OpenCL platforms found ({names}) have no device. {NO_RUNTIME}")
    return devices


def _describe(platform, handle) -> Device:
    import pyopencl as cl

    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    kind = next((name for flag, name in kinds.items() if handle.type & flag), "accelerator")
    return Device(
        name=" ".join(handle.name.split()),
        platform=platform.name.strip(),
        vendor=handle.vendor.strip(),
        driver=handle.driver_version.strip(),
        version=handle.version.strip(),
        kind=kind,
        memory=handle.global_mem_size,
        largest_buffer=handle.max_mem_alloc_size,
        local_memory=handle.local_mem_size,
        compute_units=handle.max_compute_units,
        clock_mhz=handle.max_clock_frequency,
        alignment=max(64, handle.mem_base_addr_align // 8),
        vector_width=handle.native_vector_width_float,
        extensions=tuple(sorted(handle.extensions.split())),
        notes=faults.mend(platform, handle),
        handle=handle,
    )
