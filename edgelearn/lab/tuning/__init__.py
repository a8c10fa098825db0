"""Search the fastest kernel variants and tile sizes on a device."""

from .search import Tuner, TuningReport, tune
from .workloads import Work, works_of

__all__ = ["Tuner", "TuningReport", "Work", "tune", "works_of"]
