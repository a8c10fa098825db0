"""Where the time of a step goes, how far from the device's limits, and what it would be on another device."""

from .peaks import Peaks, measure_peaks
from .roofline import Point, Roofline, profile

__all__ = ["Peaks", "Point", "Roofline", "measure_peaks", "profile"]
