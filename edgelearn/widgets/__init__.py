"""Live views and pictures for the notebooks."""

from edgelearn.experiments.plan_figures import plot_roles, plot_timeline
from edgelearn.experiments.precision.traces import plot_ranges

from .bits import BitsView
from .budgets import BudgetView
from .form import Form
from .pictures import contact_sheet, plot_prediction
from .reconstruction import plot_reconstruction
from .roc import RocView
from .show import device_table, plot_history, show, table
from .training import TrainingView
from .waiting import Waiting

__all__ = [
    "BitsView", "BudgetView", "Form", "RocView", "TrainingView", "Waiting", "contact_sheet", "device_table",
    "plot_history", "plot_prediction", "plot_ranges", "plot_reconstruction", "plot_roles", "plot_timeline", "show",
    "table",
]  # fmt: skip
