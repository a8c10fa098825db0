"""Where the time of a step goes, how far from the device's limits, and what it would be on another device."""

from .edge import EdgeDevice, edge_devices
from .peaks import Peaks, measure_peaks
from .projection import Estimate, Projection, project
from .record import Record
from .roofline import Point, Roofline, profile

__all__ = [
    "EdgeDevice", "Estimate", "Peaks", "Point", "Projection", "Record", "Roofline", "edge_devices", "measure_peaks",
    "profile", "project",
]  # fmt: skip
