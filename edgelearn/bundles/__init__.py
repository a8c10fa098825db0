"""Bundles: the training of a network as C sources for phones, boards and microcontrollers."""

from .client import compile_client, write_client
from .native import NativeBundle
from .write import Bundle, bundle, read_state

__all__ = ["Bundle", "NativeBundle", "bundle", "compile_client", "read_state", "write_client"]
