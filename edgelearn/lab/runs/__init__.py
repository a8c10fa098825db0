"""The run store: what was run, on what, with which result; compare, draw, export."""

from .compare import Comparison, compare, list_table
from .export import export, write_export
from .statistics import mean_and_deviation, median, wilson_interval
from .store import Run, RunStore, RunSummary

__all__ = [
    "Comparison",
    "Run",
    "RunStore",
    "RunSummary",
    "compare",
    "export",
    "list_table",
    "mean_and_deviation",
    "median",
    "wilson_interval",
    "write_export",
]
