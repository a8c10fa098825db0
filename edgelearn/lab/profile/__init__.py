"""Where the time of a step goes, how far it is from the device's limits, and a prediction for other devices."""

from .edge import EdgeDevice, edge_devices
from .peaks import Peaks, measure_peaks
from .plot import plot
from .projection import Estimate, KindError, Projection, project
from .record import DeviceRecord
from .roofline import Point, Roofline, profile
from .table import projection_table, roofline_table
from .trace import trace

__all__ = [
    "DeviceRecord", "EdgeDevice", "Estimate", "KindError", "Peaks", "Point", "Projection", "Roofline", "edge_devices",
    "measure_peaks", "plot", "profile", "project", "projection_table", "roofline_table", "trace",
]  # fmt: skip
