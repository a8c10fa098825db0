"""Bundles: the training of a network as C sources for phones, boards and microcontrollers."""

from .native import NativeBundle
from .write import Bundle, bundle, read_state

__all__ = ["Bundle", "NativeBundle", "bundle", "read_state"]
