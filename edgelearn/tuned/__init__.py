"""Which choices were measured to be fastest on which kind of device: data, and finding what fits."""

from .files import user_folder
from .kind import Kind
from .store import NOT_TUNED, Choice, Found, Results, find, folders, load, path_of, save, shipped

__all__ = [
    "NOT_TUNED", "Choice", "Found", "Kind", "Results", "find", "folders", "load", "path_of", "save", "shipped",
    "user_folder",
]  # fmt: skip
