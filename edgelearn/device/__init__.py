"""Devices as data, without OpenCL objects."""

from .device import Device
from .kind import DeviceKind

__all__ = ["Device", "DeviceKind"]
