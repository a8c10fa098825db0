"""The run store: what was run, on what, with which result; compare, draw, export."""

from edgelearn.runs.compare import Comparison, compare, list_table
from edgelearn.runs.export import export, write_export
from edgelearn.runs.statistics import mean_and_deviation, median, wilson_interval
from edgelearn.runs.store import Run, RunStore, RunSummary

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
