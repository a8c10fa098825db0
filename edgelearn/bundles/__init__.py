"""Bundles: the training of a network as C sources for phones, boards and microcontrollers."""

from .write import Bundle, bundle, read_state

__all__ = ["Bundle", "bundle", "read_state"]
