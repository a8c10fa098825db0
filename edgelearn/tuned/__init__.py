"""The fastest kernel configurations measured, by kind of device."""

from .files import user_folder
from .store import NOT_TUNED, DeviceTuning, KernelConfig, TuningResults, find, folders, load, path_of, save, shipped
from .traits import Traits

__all__ = [
    "NOT_TUNED", "DeviceTuning", "KernelConfig", "Traits", "TuningResults", "find", "folders", "load", "path_of",
    "save", "shipped", "user_folder",
]  # fmt: skip
