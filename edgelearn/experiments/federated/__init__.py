"""Federations on tasks, in run folders."""

from .experiment import TASKS, FederatedConfig, FederatedExperiment, PersonalErrors, personalise
from .report import plot_bytes, plot_partition, read_rounds

__all__ = [
    "TASKS", "FederatedConfig", "FederatedExperiment", "PersonalErrors", "personalise", "plot_bytes", "plot_partition",
    "read_rounds",
]  # fmt: skip
