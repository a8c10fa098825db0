"""What a device is, as data: no OpenCL object lives here."""

from .device import Device
from .kind import DeviceKind

__all__ = ["Device", "DeviceKind"]
