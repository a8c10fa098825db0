"""Where the time of a step goes, how far it is from the device's limits, and a prediction for other devices."""

from .projection import DeviceRecord, EdgeDevice, Estimate, KindError, Projection, edge_devices, project
from .roofline import Peaks, Point, Roofline, measure_launches, measure_peaks, profile
from .show import plot, projection_table, roofline_table, trace

__all__ = [
    "DeviceRecord", "EdgeDevice", "Estimate", "KindError", "Peaks", "Point", "Projection", "Roofline", "edge_devices",
    "measure_launches", "measure_peaks", "plot", "profile", "project", "projection_table", "roofline_table", "trace",
]  # fmt: skip
