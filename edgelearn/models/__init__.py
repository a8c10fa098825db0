"""A network a file."""

from .mobilenet_v1 import mobilenet_v1

__all__ = ["mobilenet_v1"]
