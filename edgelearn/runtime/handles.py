"""OpenCL objects of devices."""

from __future__ import annotations

from typing import Any

from edgelearn.device import Device

from .process import check_process


def opencl_device(device: Device) -> Any:
    """Return the cl.Device that `device` describes."""
    import pyopencl as cl

    check_process()
    platform, place = device.index
    return cl.get_platforms()[platform].get_devices()[place]
