"""Which OpenCL devices there are, which one is chosen and why, and buffers that count their bytes."""

from .choose import Choice, choose_device
from .context import Context
from .devices import Device, list_devices
from .pages import Pages, on_disk

__all__ = ["Choice", "Context", "Device", "Pages", "choose_device", "list_devices", "on_disk"]
