"""Drive a device: list and choose devices, allocate memory, compile kernels, run plans."""

from .context import Context
from .devices import DeviceChoice, SelfTest, choose_device, list_devices, self_test
from .kernels import Kernels, Runner
from .pages import FeatureCache, Pages, launch_times, on_disk
from .session import Session

__all__ = [
    "Context", "DeviceChoice", "FeatureCache", "Kernels", "Pages", "Runner", "SelfTest", "Session",
    "choose_device", "launch_times", "list_devices", "on_disk", "self_test",
]  # fmt: skip
