"""Search the fastest of several ways of computing the same, on the device at hand."""

from .search import Tuner, TuningReport, tune
from .workloads import Work, works_of

__all__ = ["Tuner", "TuningReport", "Work", "tune", "works_of"]
