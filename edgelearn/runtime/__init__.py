"""Drive a device: list and choose devices, allocate memory, compile kernels, run plans."""

from .choose import DeviceChoice, choose_device
from .context import Context
from .feature_cache import FeatureCache
from .kernels import Kernels
from .offload_speed import launch_times
from .pages import Pages, on_disk
from .platforms import list_devices
from .runner import Runner
from .self_test import SelfTest, self_test
from .session import Session

__all__ = [
    "Context", "DeviceChoice", "FeatureCache", "Kernels", "Pages", "Runner", "SelfTest", "Session",
    "choose_device", "launch_times", "list_devices", "on_disk", "self_test",
]  # fmt: skip
