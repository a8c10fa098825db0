"""Search the fastest of several ways of computing the same, on the device at hand."""

from .search import Report, Tuner, tune
from .workloads import Work, works_of

__all__ = ["Report", "Tuner", "Work", "tune", "works_of"]
