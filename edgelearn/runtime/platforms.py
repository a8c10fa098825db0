"""List the OpenCL devices of this machine."""

from __future__ import annotations

import platform as machine
from typing import Any

from edgelearn.caches import Place
from edgelearn.device import Device
from edgelearn.errors import DeviceError

from . import faults, units
from .driver_caches import POCL_CACHE, import_pyopencl, prepare
from .process import check_process
from .workers import a_core_each

NO_RUNTIME = (
    "No OpenCL runtime was found, so there is no device to train on. Install one that runs on any CPU with:\n"
    "    pip install 'pyopencl[pocl]'"
)


def list_devices() -> list[Device]:
    """List every OpenCL device of this machine, in the order of its platforms.

    Raises DeviceError if there is no OpenCL runtime or no device, or in a fork of a process that uses one.
    """
    check_process()
    place = prepare()
    try:
        cl = import_pyopencl()
    except ImportError as error:
        raise DeviceError(f"{NO_RUNTIME}\n(import pyopencl: {error})") from None
    try:
        with a_core_each("platforms"):
            platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(f"{_advice(place)}\n({error})") from None
    devices = []
    for number, platform in enumerate(platforms):
        try:
            with a_core_each(number):
                handles = platform.get_devices()
        except cl.Error:  # a platform without devices, such as a GPU driver on a machine without the GPU
            continue
        devices += [_describe(platform, handle, (number, place)) for place, handle in enumerate(handles)]
    if not devices:
        names = ", ".join(p.name for p in platforms) or "none"
        raise DeviceError(f"The OpenCL platforms found ({names}) have no device. {_advice(place)}")
    return devices


def _advice(place: Place) -> str:
    """The remedy where there is no device: without a folder to write to, PoCL doesn't report its own."""
    if not place.problem:
        return NO_RUNTIME
    return (
        f"PoCL, the OpenCL runtime for CPUs, has no folder for its kernels: {place.problem}. Name one that can be "
        f"written in the environment variable {POCL_CACHE}. If PoCL isn't installed:\n    pip install 'pyopencl[pocl]'"
    )


def _architecture(handle: Any, kind: str) -> str:
    import pyopencl as cl

    if kind == "cpu":
        return machine.machine().lower()
    try:  # NVIDIA's cl_nv_device_attribute_query
        numbers = (handle.compute_capability_major_nv, handle.compute_capability_minor_nv)
    except (AttributeError, cl.Error):
        return " ".join(handle.name.split())
    return f"compute capability {numbers[0]}.{numbers[1]}"


def _describe(platform: Any, handle: Any, index: tuple[int, int]) -> Device:
    import pyopencl as cl

    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    kind = next((name for flag, name in kinds.items() if handle.type & flag), "accelerator")
    notes = faults.mend(platform, handle)
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
        vector_width=faults.vector_width(handle),
        extensions=tuple(sorted(handle.extensions.split())),
        notes=notes,
        architecture=_architecture(handle, kind),
        index=index,
        probe=units.find,
    )
