"""The run store: configurations, environments and results of runs; compare, draw, export."""

from edgelearn.statistics import Interval, interval, mean_and_deviation, median, wilson_interval

from .compare import Comparison, compare, export, write_export
from .run import Run
from .store import RunStore
from .summary import Runs, RunSummary, list_table

__all__ = [
    "Comparison",
    "Interval",
    "Run",
    "RunStore",
    "RunSummary",
    "Runs",
    "compare",
    "export",
    "interval",
    "list_table",
    "mean_and_deviation",
    "median",
    "wilson_interval",
    "write_export",
]
