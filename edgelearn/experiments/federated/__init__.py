"""Federations on tasks, in run folders."""

from .config import FederatedConfig
from .experiment import FederatedExperiment
from .partition_figure import plot_partition
from .personal import PersonalErrors, personalise
from .report import plot_bytes
from .round_records import read_rounds
from .tasks import TASKS

__all__ = [
    "TASKS", "FederatedConfig", "FederatedExperiment", "PersonalErrors", "personalise", "plot_bytes", "plot_partition",
    "read_rounds",
]  # fmt: skip
