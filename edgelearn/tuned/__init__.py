"""The fastest kernel configurations measured, by kind of device."""

from edgelearn.device import KernelConfig, Traits

from .store import (
    NOT_TUNED,
    DeviceTuning,
    TuningResults,
    find,
    folders,
    load,
    path_of,
    save,
    shipped,
    user_folder,
)

__all__ = [
    "NOT_TUNED", "DeviceTuning", "KernelConfig", "Traits", "TuningResults", "find", "folders", "load", "path_of",
    "save", "shipped", "user_folder",
]  # fmt: skip
