"""Bundles: the training of a network as C sources for phones and boards."""

from .write import Bundle, bundle, read_state

__all__ = ["Bundle", "bundle", "read_state"]
