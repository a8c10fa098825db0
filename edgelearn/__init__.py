"""A workbench for on-device learning: an OpenCL training engine, with experiments on top."""

__version__ = "0.1.0"
